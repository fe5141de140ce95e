"""The Relax line in a comparison: PrimFuncs as its pipeline prepares them, kernels built of MetaSchedule's records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from roller_bench.cases import Case
from roller_bench.edge import Edge, Shapes
from roller_bench.peers_relax import metaschedule, untuned
from roller_bench.relax_task import Opened
from roller_bench.results import Prepared
from roller_bench.task import OpenedTask, write_task
from roller_bench.timing import Timer, kernel_timer, random_arguments
from roller_tvm.ir import TensorExpression
from roller_tvm.ir.operators import parse_params
from roller_tvm.tuning.timing import Memory
from roller_tvm.tvm_env import import_relax_tvm


class RelaxEdge(Edge):
    """The Relax line."""

    line = "relax"
    tuners = {"metaschedule": metaschedule, "untuned": untuned, "dlight": untuned}
    built = (
        "tiles on the stack, weights ahead of time, whole vectors at edges, exp and tanh as arithmetic: "
        "built as roller_tvm.relay.build does"
    )

    def tvm(self) -> Any:
        return import_relax_tvm("comparing")

    def target(self, target: str) -> Any:
        from roller_tvm.relax.targets import make_target

        return make_target(target)

    def prepared(self, case: Case, expression: TensorExpression, target: str, folder: Path) -> Prepared:
        from tvm import te

        from roller_tvm.codegen.tensorir_packing import CONSTANTS, constant_parameters
        from roller_tvm.relax.tasks import extract_tasks
        from roller_tvm.te import te_operator

        tensors = te_operator(case.operator, **parse_params(case.params))
        func = te.create_prim_func(tensors)
        # A network's weights, and the bias behind them.
        weights = tuple(range(1, len(tensors) - 1)) if case.weighted else ()
        if weights:
            func = func.with_attr(CONSTANTS, list(weights))
        (task,) = extract_tasks(func)
        # TVM marks the second operand of a product itself; every tuner may pack what is marked.
        return _write(case, task, constant_parameters(func), expression, folder)

    def model_tasks(
        self, file: Path, shapes: Shapes | None, layout: str | None, params: Path | None, target: str, trusted: bool
    ) -> Iterable[Any]:
        """Return the tasks of a model as the pipeline "roller" prepares them."""
        from roller_tvm.relax import load_model
        from roller_tvm.relax import prepare as lowered
        from roller_tvm.relax.tasks import extract_tasks

        model = load_model(file, shapes, layout, params, trusted=trusted)
        return extract_tasks(lowered(model.mod, self.target(target)))

    def prepared_task(self, case: Case, task: Any, folder: Path) -> Prepared | None:
        from roller_tvm.tir.read import read_prim_func

        expression = read_prim_func(task.func).expression
        return _write(case, task, task.constants, expression, folder) if expression.flops else None

    def open(self, task: Path, case: Case, target: str, folder: Path) -> Opened:
        import tvm

        from roller_tvm.relax.devices import device_of
        from roller_tvm.tvm_env import set_threads

        data, made_target = json.loads(task.read_text()), self.target(target)
        device = device_of(None, made_target)
        if device.kind == "cpu":
            set_threads(device.units)
        return Opened(case, made_target, device, data["key"], folder, data["mod"], tvm.ir.load_json(data["mod"]),
                      tuple(data["constants"]))  # fmt: skip

    @contextmanager
    def building(self, opened: OpenedTask, ours: bool) -> Iterator[OpenedTask]:
        assert isinstance(opened, Opened)
        yield opened.as_prepared() if ours else opened

    def timers(self, kernels: Sequence[Path], target: str) -> list[Timer]:
        import tvm

        kind = target.split()[0] if not target.lstrip().startswith("{") else json.loads(target)["kind"]
        device, memory = tvm.device("cpu" if kind in ("llvm", "c") else kind, 0), Memory()

        def timer(path: Path) -> Timer:
            module = tvm.runtime.load_module(str(path))
            shapes = json.loads(path.with_suffix(".json").read_text())["args"]
            args = random_arguments(shapes, memory, lambda values: tvm.runtime.tensor(values, device))
            return kernel_timer(module, "main", args, device)

        return [timer(path) for path in kernels]


def _write(case: Case, task: Any, constants: tuple[int, ...], expression: TensorExpression, folder: Path) -> Prepared:
    import tvm

    data = {"key": task.key, "mod": str(tvm.ir.save_json(task.workloads[0])), "constants": list(constants)}
    return Prepared(case, write_task(case, data, folder), float(expression.flops), float(expression.io_bytes))


EDGE = RelaxEdge()
facts, prepare, tasks = EDGE.facts, EDGE.prepare, EDGE.tasks
tune, build_again, time = EDGE.tune, EDGE.build_again, EDGE.time
