"""Tasks of a comparison on the Relay line, as ``relay.build`` prepares them, in files that every job reads."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from roller_tvm.compare.opened import OpenedTask, model_told, write_task
from roller_tvm.compare.relay.functions import relay_function
from roller_tvm.compare.results import Prepared
from roller_tvm.compare.suite import Case
from roller_tvm.errors import RollerError, UnsupportedOperator, last_line


@dataclass
class Opened(OpenedTask):
    """A task open in a job.

    Parameters
    ----------
    desc : str
        Ansor's description of the task.
    dag : ComputeDAG
    default : str
        TVM's own kernel as lowered TIR, or ''.
    flops : float
        FLOPs of one run.
    """

    desc: str
    dag: Any
    default: str
    flops: float

    @cached_property
    def search_task(self) -> Any:
        """Ansor's task, with the packing of weights that ``relay.build`` applies."""
        from tvm import auto_scheduler

        return auto_scheduler.SearchTask(
            compute_dag=self.dag, workload_key=self.key, target=self.target, desc=self.desc,
            layout_rewrite_option=auto_scheduler.LayoutRewriteOption.get_target_default(self.target, True),
        )  # fmt: skip


def prepare(cases: list[dict[str, Any]], target: str, folder: Path) -> list[dict[str, Any]]:
    """Prepare named operators as tasks; one that fails gets a reason instead."""
    from roller_tvm.device import device_for_target
    from roller_tvm.relay.tasks import make_target

    made_target = make_target(target)
    device = device_for_target(target)
    found = []
    for data in cases:
        case = Case.from_json(data)
        try:
            prepared = _prepare(case, made_target, device, folder)
        except RollerError as error:
            prepared = Prepared(case, reason=error.what)
        except Exception as error:  # TVM's own, of one operator
            prepared = Prepared(case, reason=last_line(error))
        found.append(asdict(prepared))
    return found


def _prepare(case: Case, target: Any, device: Any, folder: Path) -> Prepared:
    from tvm import auto_scheduler

    from roller_tvm.relay.tasks import extract_tasks
    from roller_tvm.te import te_operator

    expression = case.expression()
    tasks: list[Any]
    try:
        tasks = [t for t in extract_tasks(*relay_function(case), target, device) if t.weight]
    except UnsupportedOperator:
        tasks = []
    if len(tasks) == 1:
        key, desc = tasks[0].key, tasks[0].search_task.desc
        dag, default = tasks[0].search_task.compute_dag, tasks[0].default
    else:  # as one kernel, though Relay has none
        from roller_tvm.ir.operators import parse_params

        dag = auto_scheduler.ComputeDAG(te_operator(case.operator, **parse_params(case.params)))
        key, desc, default = dag.workload_key(), case.operator, ""
    return _write(case, key, desc, dag, default, float(expression.flops), float(expression.io_bytes), folder)


def of_model(
    file: str, shapes: dict[str, list[int]] | None, layout: str | None, params: str | None, target: str, folder: Path
) -> list[dict[str, Any]]:
    """Prepare the tasks of a model that compute something."""
    from roller_tvm.device import device_for_target
    from roller_tvm.relay.importers import load_model
    from roller_tvm.relay.tasks import extract_tasks, make_target
    from roller_tvm.te import read_te

    model = load_model(Path(file), {n: tuple(s) for n, s in shapes.items()} if shapes else None, layout,
                       Path(params) if params else None)  # fmt: skip
    stem, found = Path(file).stem, []
    told = model_told(file, shapes, layout)
    for task in extract_tasks(model.mod, model.params, make_target(target), device_for_target(target)):
        if not task.weight:
            continue
        case = Case(f"{stem}.{task.id}", group=stem, weight=task.weight, title=f"{stem} {task.name}", model=told,
                    task=task.key)  # fmt: skip
        dag = task.search_task.compute_dag
        try:
            io_bytes = float(read_te(dag).expression.io_bytes)
            prepared = _write(case, task.key, task.search_task.desc, dag, task.default, task.flops, io_bytes, folder)
        except RollerError as error:
            prepared = Prepared(case, reason=error.what)
        found.append(asdict(prepared))
    return found


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


def open_task(path: Path, case: dict[str, Any], target: str, folder: Path) -> Opened:
    """Open a task from its file."""
    from tvm import auto_scheduler
    from tvm.runtime._ffi_node_api import LoadJSON

    from roller_tvm.device import device_for_target
    from roller_tvm.relay.tasks import make_target
    from roller_tvm.tvm_env import set_threads

    data = json.loads(path.read_text())
    device = device_for_target(target)
    if device.kind == "cpu":
        set_threads(device.units)
    tensors = list(LoadJSON(data["tensors"]))
    auto_scheduler.workload_registry.register_workload_tensors(data["key"], tensors, override=True)
    return Opened(
        Case.from_json(case), make_target(target), device, data["key"], folder, data["desc"],
        auto_scheduler.ComputeDAG(tensors), data["default"], data["flops"],
    )  # fmt: skip
