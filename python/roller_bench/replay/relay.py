"""Replays records of a whole model: finds their workloads, hashes of compute DAGs, among the model's tasks."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.errors import UnsupportedOperator, last_line
from roller_tvm.relay.tasks import extract_tasks, make_target
from roller_tvm.te.read import TeReading, read_te

from .records import Recorded
from .replay import named_workload
from .state import Digits, StageInfo, Unreadable
from .workload import Workload, hashed, kind_of

#: Kinds of target whose kernels run in blocks of threads, and how each is told its architecture.
GPUS = {"cuda": "-arch=", "nvptx": "-mcpu=", "rocm": "-mcpu=", "opencl": "", "vulkan": "", "metal": ""}


def workload_of_dag(dag: Any, name: str = "") -> Workload:
    """Return the workload of a ``ComputeDAG``, with stages numbered as in its records.

    Raises
    ------
    UnsupportedOperator
        The operator cannot be planned.
    """
    reading = read_te(dag)
    stages = tuple(_stage_info(reading, stage) for stage in reading.positions)
    return Workload(kind_of(reading.expression), reading.expression, stages, reading.expression.anchor.name, name=name)


def _stage_info(reading: TeReading, name: str) -> StageInfo:
    """Return a stage's loops, and the axes of the expression that each loop covers."""
    if name in reading.tensors:
        shape = reading.expression.tensors[name].shape
        return StageInfo(name, shape, is_input=True)
    stage, op = reading.expression.stage(name), reading.ops[name]
    place = {axis.name: (position, axis.extent) for position, axis in enumerate(stage.axes)}
    digits: list[Digits] = [tuple(place[axis] for axis in axes) for axes in reading.axes[name].values()]
    if [a for loop in digits for a, _ in loop] != list(range(len(place))):
        raise UnsupportedOperator(f"the axes of '{name}' come in another order than its loops", reading.expression.name)
    lengths, outputs = [prod(extent for _, extent in loop) for loop in digits], len(op.axis)
    plain = all(len(loop) == 1 for loop in digits)
    return StageInfo(name, tuple(lengths[:outputs]), tuple(lengths[outputs:]), digits=() if plain else tuple(digits))


class ModelWorkloads:
    """Finds the workloads of records that name them by a hash only, among the tasks of a model.

    Parameters
    ----------
    title : str
        Title of the model, for error messages.
    mod, params
        See ``relay.build``: the keys of tasks depend on which parameters are bound.
    device : DeviceSpec
        The device that the records were measured on.
    any_target : bool
        Whether records for CPUs are looked up too.
    """

    def __init__(self, title: str, mod: Any, params: Any, device: DeviceSpec, any_target: bool = False) -> None:
        self.title, self.device, self.any_target = title, device, any_target
        self._model = mod, params
        self._tasks: dict[str, dict[str, Any]] = {}  # kind of target -> key -> task

    def __call__(self, record: Recorded, path: Path) -> Workload:
        if not hashed(record.key):
            return named_workload(record, path)
        kind = record.target_kind
        if kind not in GPUS and not self.any_target:
            told = kind or "empty"
            raise Unreadable(f"its target is {told}: kernels of GPUs alone are predicted ({', '.join(GPUS)})")
        target = kind if kind in GPUS else record.target
        task = self.tasks(target).get(_plain(record.key))
        if task is None:
            return self._by_file(record, path, target)
        try:
            return workload_of_dag(task.search_task.compute_dag, task.name)
        except UnsupportedOperator as error:
            raise Unreadable(f"task {task.name} of {self.title} cannot be planned: {last_line(error.what)}") from None

    def tasks(self, kind: str) -> dict[str, Any]:
        """Return the model's tasks for a kind of GPU or a target by key; extracted once, which takes seconds."""
        if kind not in self._tasks:
            target = make_target(f"{kind} {GPUS[kind]}{self.device.arch}" if GPUS.get(kind) else kind)
            found = extract_tasks(*self._model, target, self.device)
            self._tasks[kind] = {_plain(task.key): task for task in found}
        return self._tasks[kind]

    def _by_file(self, record: Recorded, path: Path, kind: str) -> Workload:
        """Return the operator that the file is named after; raise ``Unreadable`` if its name says none."""
        try:
            return named_workload(record, path)
        except Unreadable:
            raise Unreadable(
                f"{record.key[2:10]}.. is none of the {len(self.tasks(kind))} tasks of {self.title}: another model, "
                "batch, layout or version of TVM"
            ) from None


def _plain(key: str) -> str:
    """Return a key in one spelling. It keeps the shapes: the hash leaves some of them out."""
    return json.dumps(json.loads(key))
