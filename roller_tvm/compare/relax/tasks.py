"""Tasks of a comparison on the Relax line: PrimFuncs as its pipeline prepares them, in files that every job reads."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from roller_tvm.compare.opened import OpenedTask, model_told, write_task
from roller_tvm.compare.results import Prepared
from roller_tvm.compare.suite import Case
from roller_tvm.errors import RollerError, last_line


@dataclass
class Opened(OpenedTask):
    """A task open in a job.

    Parameters
    ----------
    text : str
        Module as JSON.
    mod : IRModule
    constants : tuple of int
        Positions of the parameters that are weights.
    ours : bool
        True to build as Roller's pipeline builds for a CPU.
    """

    text: str
    mod: Any
    constants: tuple[int, ...]
    ours: bool = False

    def task(self) -> Any:
        """Return the task as ``relax.tune`` takes it."""
        from roller_tvm.relax.tasks import Task

        return Task(0, self.case.id, 1, self.mod["main"], (self.mod,), self.constants, self.key)

    def as_prepared(self) -> Opened:
        """Return the task as ``relax.build`` prepares it for a CPU (exp and tanh as arithmetic), else the task itself.

        The answers are compared with those of the original function.
        """
        import tvm
        import tvm_ffi

        from roller_tvm.compare.relax.kernels import make_reference
        from roller_tvm.relax.vector_math import VectorMath

        if self.target.kind.name != "llvm":
            return self
        rewrite: Any = VectorMath()
        mod = rewrite(self.mod)
        if tvm_ffi.structural_equal(mod, self.mod):
            return replace(self, ours=True)
        key = f"{self.key}.prepared"
        make_reference(self.key, self.text, self.target, self.constants, self.kernels / key)
        return replace(self, key=key, text=str(tvm.ir.save_json(mod)), mod=mod, ours=True)


def prepare(cases: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Prepare named operators as PrimFuncs; one that fails gets a reason instead."""
    found = []
    for data in cases:
        case = Case.from_json(data)
        try:
            prepared = _prepare(case, folder)
        except RollerError as error:
            prepared = Prepared(case, reason=error.what)
        except Exception as error:  # TVM's own, of one operator
            prepared = Prepared(case, reason=last_line(error))
        found.append(asdict(prepared))
    return found


def _prepare(case: Case, folder: Path) -> Prepared:
    from tvm import te

    from roller_tvm.codegen.tensorir_packing import CONSTANTS, constant_parameters
    from roller_tvm.ir.operators import parse_params
    from roller_tvm.relax.tasks import extract_tasks
    from roller_tvm.te import te_operator

    expression = case.expression()
    tensors = te_operator(case.operator, **parse_params(case.params))
    func = te.create_prim_func(tensors)
    # A network's weights, and the bias behind them.
    weights = tuple(range(1, len(tensors) - 1)) if case.weighted else ()
    if weights:
        func = func.with_attr(CONSTANTS, list(weights))
    (task,) = extract_tasks(func)
    # TVM marks the second operand of a product itself; every tuner may pack what is marked.
    constants = constant_parameters(func)
    return _write(case, task, constants, float(expression.flops), float(expression.io_bytes), folder)


def of_model(
    file: str, shapes: dict[str, list[int]] | None, layout: str | None, params: str | None, target: str, folder: Path
) -> list[dict[str, Any]]:
    """Prepare the tasks of a model that compute something, as the pipeline "roller" prepares them."""
    from roller_tvm.relax import load_model
    from roller_tvm.relax import prepare as lowered
    from roller_tvm.relax.targets import make_target
    from roller_tvm.relax.tasks import extract_tasks
    from roller_tvm.tir.read import read_prim_func

    model = load_model(Path(file), {n: tuple(s) for n, s in shapes.items()} if shapes else None, layout,
                       Path(params) if params else None)  # fmt: skip
    stem, found = Path(file).stem, []
    told = model_told(file, shapes, layout)
    for task in extract_tasks(lowered(model.mod, make_target(target))):
        case = Case(f"{stem}.{task.id}", group=stem, weight=task.weight, title=f"{stem} {task.name}", model=told,
                    task=task.key)  # fmt: skip
        try:
            expression = read_prim_func(task.func).expression
            if not expression.flops:
                continue
            flops, io_bytes = float(expression.flops), float(expression.io_bytes)
            prepared = _write(case, task, task.constants, flops, io_bytes, folder)
        except RollerError as error:
            prepared = Prepared(case, reason=error.what)
        found.append(asdict(prepared))
    return found


def _write(case: Case, task: Any, constants: tuple[int, ...], flops: float, io_bytes: float, folder: Path) -> Prepared:
    import tvm

    data = {"key": task.key, "mod": str(tvm.ir.save_json(task.workloads[0])), "constants": list(constants)}
    return Prepared(case, write_task(case, data, folder), flops, io_bytes)


def open_task(path: Path, case: dict[str, Any], target: str, folder: Path) -> Opened:
    """Open a task from its file."""
    import tvm

    from roller_tvm.relax.devices import device_of
    from roller_tvm.relax.targets import make_target
    from roller_tvm.tvm_env import set_threads

    data = json.loads(path.read_text())
    made_target = make_target(target)
    device = device_of(None, made_target)
    if device.kind == "cpu":
        set_threads(device.units)
    return Opened(
        Case.from_json(case), made_target, device, data["key"], folder, data["mod"], tvm.ir.load_json(data["mod"]),
        tuple(data["constants"]),
    )  # fmt: skip
