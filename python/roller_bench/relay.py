"""The Relay line in a comparison: tasks as ``relay.build`` prepares them, kernels built from Ansor's records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from roller_bench.cases import Case
from roller_bench.edge import Edge, Shapes
from roller_bench.peers_relay import ansor, autotvm, built, untuned
from roller_bench.relay_operators import relay_function
from roller_bench.relay_task import Opened
from roller_bench.results import Prepared
from roller_bench.task import OpenedTask, write_task
from roller_bench.timing import Timer, kernel_timer, random_arguments
from roller_tvm.errors import UnsupportedOperator
from roller_tvm.ir import TensorExpression
from roller_tvm.tuning.timing import Memory
from roller_tvm.tvm_env import import_relay_tvm


class RelayEdge(Edge):
    """The Relay line."""

    line = "relay"
    tuners = {"ansor": ansor, "autotvm": autotvm, "untuned": untuned}
    rebuilt = {"autotvm": built}
    built = (
        "addresses in 64 bits, tiles on the stack, weights ahead of time, whole vectors at edges, "
        "exp and tanh as arithmetic: "
        "built as roller_tvm.relay.build does"
    )

    def tvm(self) -> Any:
        return import_relay_tvm("comparing")

    def target(self, target: str) -> Any:
        from roller_tvm.relay.tasks import make_target

        return make_target(target)

    def prepared(self, case: Case, expression: TensorExpression, target: str, folder: Path) -> Prepared:
        from tvm import auto_scheduler

        from roller_tvm.device import device_for_target
        from roller_tvm.ir.operators import parse_params
        from roller_tvm.relay.tasks import extract_tasks
        from roller_tvm.te import te_operator

        tasks: list[Any] = []
        try:
            extracted = extract_tasks(*relay_function(case), self.target(target), device_for_target(target))
            tasks = [t for t in extracted if t.weight]
        except UnsupportedOperator:
            pass
        if len(tasks) == 1:
            key, desc = tasks[0].key, tasks[0].search_task.desc
            dag, default = tasks[0].search_task.compute_dag, tasks[0].default
        else:  # as one kernel, though Relay has none
            dag = auto_scheduler.ComputeDAG(te_operator(case.operator, **parse_params(case.params)))
            key, desc, default = dag.workload_key(), case.operator, ""
        return _write(case, key, desc, dag, default, float(expression.flops), float(expression.io_bytes), folder)

    def model_tasks(
        self, file: Path, shapes: Shapes | None, layout: str | None, params: Path | None, target: str, trusted: bool
    ) -> Iterable[Any]:
        from roller_tvm.device import device_for_target
        from roller_tvm.relay.importers import load_model
        from roller_tvm.relay.tasks import extract_tasks

        model = load_model(file, shapes, layout, params, trusted=trusted)
        return extract_tasks(model.mod, model.params, self.target(target), device_for_target(target))

    def prepared_task(self, case: Case, task: Any, folder: Path) -> Prepared | None:
        from roller_tvm.te import read_te

        if not task.weight:
            return None
        dag = task.search_task.compute_dag
        io_bytes = float(read_te(dag).expression.io_bytes)
        return _write(case, task.key, task.search_task.desc, dag, task.default, task.flops, io_bytes, folder)

    def open(self, task: Path, case: Case, target: str, folder: Path) -> Opened:
        from tvm import auto_scheduler
        from tvm.runtime._ffi_node_api import LoadJSON

        from roller_tvm.device import device_for_target
        from roller_tvm.tvm_env import set_threads

        data = json.loads(task.read_text())
        device = device_for_target(target)
        if device.kind == "cpu":
            set_threads(device.units)
        tensors = list(LoadJSON(data["tensors"]))
        auto_scheduler.workload_registry.register_workload_tensors(data["key"], tensors, override=True)
        return Opened(
            case, self.target(target), device, data["key"], folder, data["desc"], auto_scheduler.ComputeDAG(tensors),
            data["default"], data["flops"],
        )  # fmt: skip

    @contextmanager
    def building(self, opened: OpenedTask, ours: bool) -> Iterator[OpenedTask]:
        from roller_tvm.relay.rewrites import as_tvm, cpu_code

        with cpu_code() if ours else as_tvm():
            yield opened

    def timers(self, kernels: Sequence[Path], target: str) -> list[Timer]:
        import tvm

        device, memory = tvm.device(tvm.target.Target(target).kind.name, 0), Memory()

        def timer(path: Path) -> Timer:
            module = tvm.runtime.load_module(str(path))
            shapes = json.loads(path.with_suffix(".json").read_text())["args"]
            args = random_arguments(shapes, memory, lambda values: tvm.nd.array(values, device))
            return kernel_timer(module, module.entry_name, args, device)

        return [timer(path) for path in kernels]


def _write(
    case: Case, key: str, desc: str, dag: Any, default: str, flops: float, io_bytes: float, folder: Path
) -> Prepared:
    from tvm.runtime._ffi_node_api import SaveJSON

    tensors = letters_alone(str(SaveJSON(dag.tensors)))
    data = {"key": key, "desc": desc, "tensors": tensors, "default": default, "flops": flops}
    return Prepared(case, write_task(case, data, folder), flops, io_bytes)


def letters_alone(tensors: str) -> str:
    """Return tensors as JSON with digits in variable names replaced by letters.

    Ansor packs no weight along an axis named 'i1'.

    Examples
    --------
    >>> nodes = [{"type_key": "tir.Var", "attrs": {"name": "1"}}, {"type_key": "runtime.String", "repr_str": "i1"}]
    >>> json.loads(letters_alone(json.dumps({"nodes": nodes})))["nodes"][-1]["repr_str"]
    'ib'
    """
    data = json.loads(tensors)
    nodes = data["nodes"]
    variables = [n for n in nodes if n.get("type_key") in ("tir.Var", "tir.SizeVar")]
    taken = {nodes[int(v["attrs"]["name"])]["repr_str"] for v in variables}
    fresh: dict[str, str] = {}
    for variable in variables:
        name_node = nodes[int(variable["attrs"]["name"])]
        name = name_node["repr_str"]
        if not any(c.isdigit() for c in name):
            continue
        if name not in fresh:
            fresh[name] = "".join(ascii_lowercase[int(c)] if c.isdigit() else c for c in name)
            while fresh[name] in taken:
                fresh[name] += "x"
            taken.add(fresh[name])
        variable["attrs"]["name"] = str(len(nodes))  # a node of its own: something else may have the same string
        nodes.append({**name_node, "repr_str": fresh[name]})
    return json.dumps(data)


EDGE = RelayEdge()
facts, prepare, tasks = EDGE.facts, EDGE.prepare, EDGE.tasks
tune, build_again, time = EDGE.tune, EDGE.build_again, EDGE.time
