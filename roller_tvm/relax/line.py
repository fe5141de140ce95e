"""The Relax line (TVM 0.25 and later): PrimFuncs as tasks, schedules as candidates, MetaSchedule's databases."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import tvm

from ..codegen.tensorir_packing import constant_parameters
from ..device import DeviceSpec
from ..errors import RecordError
from ..tuning.candidates import Candidates
from ..tuning.claims import Claims
from ..tuning.line import Model, Tasks
from ..tuning.measurer import Work
from ..tuning.results import UNMEASURED, TunedTask, resumed
from ..tuning.session import PACKED, PLAIN
from .candidates import make_candidates
from .database import Note, Store
from .devices import device_of, find_target
from .fuse_rtasks import FuseRTasks
from .record_files import intrinsics_of
from .record_lines import copies_ahead, record_line
from .reference import default_module, default_schedule
from .tasks import Task, as_module, extract_tasks

#: Remarks where winners need more than a plain TVM to be applied.
INTRINSICS = "records name tensor intrinsics: a plain TVM applies them after `import tvm.s_tir.tensor_intrin`"
AHEAD = "kernels copy ahead (cp.async) where they are built in a PassContext with tirx.use_async_copy"


class RelaxRecords:
    """A MetaSchedule database and the notes on it. See ``tuning.line.Records``.

    Parameters
    ----------
    store : Store
    given : Target
        The user's, which may say less than the database's.
    """

    untimed = "; their records hold the predicted time, in nanoseconds where measured ones hold seconds"

    def __init__(self, store: Store, given: Any) -> None:
        self.store, self.target = store, store.target
        self.place = str(store.folder) if store.folder is not None else None
        self.notes: Sequence[str] = ()
        if str(self.target) != str(given):
            told = f"the database's target is taken, {self.target}: what was given says less of the same"
            self.notes = (told,)

    def claims(self) -> Claims:
        """Return claims that always succeed: the folder is this tuner's alone."""
        return Claims(None)

    def known(self, task: Task, trials: int) -> TunedTask | None:
        """Return a task's result if the database has it from so many trials, or from MetaSchedule itself."""
        note = self.store.notes.get(task.key)
        if note is not None and note.trials < trials:
            return None
        if note is not None and note.reason:
            seconds = math.nan if note.default_s is None else note.default_s
            return TunedTask(task, "fallback", Candidates(flops=note.flops or 0.0), reason=note.reason, kept=True,
                             seconds=seconds, default_s=seconds)  # fmt: skip
        if not self.store.has_record(task):
            return None
        if note is None:
            return TunedTask(task, "resumed", Candidates(), seconds=self.store.best_seconds(task))
        return resumed(task, note, note.default_s)

    def write(self, tuned: TunedTask, schedule: Any, trials: int, seconds: float) -> list[str]:
        """Record a winner, or TVM's own kernel; a winner whose trace does not replay leaves the task to TVM."""
        note = _note(tuned, trials)
        if schedule is None:
            self._keep(tuned, note)
            return []
        repeats = [tuned.seconds] if trials else [tuned.predicted_s * UNMEASURED]
        line = record_line(tuned.task.workloads[0], schedule, self.target)
        try:
            self.store.commit(tuned.task, schedule, repeats, note)
        except RecordError as error:
            if error.where != tuned.task.name:
                raise
            tuned.status, tuned.reason = "fallback", error.what
        return [*([INTRINSICS] if intrinsics_of(line) else []), *([AHEAD] if copies_ahead(line) else [])]

    def _keep(self, tuned: TunedTask, note: Note) -> None:
        """Record TVM's own kernel, so that whoever applies the database leaves the function to it."""
        schedule = default_schedule(tuned.task.workloads[0], self.target)
        if schedule is not None:
            with contextlib.suppress(RecordError):  # its trace does not replay
                self.store.commit(tuned.task, schedule, [tuned.default_s], note)
                return
        self.store.note(note)

    def best_seconds(self, task: Task) -> float:
        return self.store.best_seconds(task)

    def report(self, text: str) -> None:
        self.store.report(text)

    def close(self) -> None:
        self.store.close()


def _note(tuned: TunedTask, trials: int) -> Note:
    def told(seconds: float) -> float | None:
        return None if math.isnan(seconds) else seconds

    return Note(
        tuned.plan.plan.digest() if tuned.plan is not None else "", told(tuned.predicted_s),
        tuned.seconds if tuned.status == "measured" else None, trials, tuned.checked, tuned.candidates.flops,
        key=tuned.task.key, default_s=told(tuned.default_s), reason=tuned.reason,
    )  # fmt: skip


class RelaxLine:
    """See ``tuning.line.Line``."""

    name = "relax"
    features = frozenset({"buckets", "names", "tf32"})

    def target(self, target: Any) -> Any:
        """Return a target, by default the one in whose scope this is called."""
        return find_target(target)

    def device(self, device: DeviceSpec | str | None, target: Any) -> DeviceSpec:
        return device_of(device, target)

    def records(self, place: Any, target: Any) -> RelaxRecords:
        """Open a database's folder; without one, a database in memory."""
        return RelaxRecords(Store(place, target), target)

    def tasks(self, model: Model, target: Any, device: DeviceSpec, names: Sequence[str] | None = None) -> Tasks:
        return extract_tasks(model.mod, model.params, names)

    def without_fused(self, model: Model, target: Any, device: DeviceSpec, fuse: Any = True) -> tuple[Model, Any]:
        """Return a module without the operators that `FuseRTasks` plans, and its report.

        On a CPU nothing is fused: every function is tuned, and `build` decides by the records which run side by side.
        """
        mod = as_module(model.mod, model.params)
        if target.kind.name == "llvm":
            return Model(mod), None
        made: Any = FuseRTasks(target, device) if fuse is True else fuse
        left = made(mod)
        return Model(left), made.report

    def candidates(self, task: Task, device: DeviceSpec, top: int) -> Candidates:
        return make_candidates(task.func, device, top, constant_parameters(task.func), task.name)

    def record(self, task: Task, schedule: Any, target: Any) -> str:
        """Return a schedule's trace as a database's file has it."""
        return record_line(task.workloads[0], schedule, target)

    def default(self, task: Task, target: Any) -> str:
        """Return TVM's own kernel as a module."""
        try:
            return str(tvm.ir.save_json(default_module(task.workloads[0], target)))
        except Exception:  # dlight has no schedule for the function; it raises whatever its rules do
            return ""

    def work(self, task: Task, target: Any) -> Work:
        """Return a task as workers open it."""
        mode = PACKED if constant_parameters(task.func) else PLAIN
        text = str(tvm.ir.save_json(task.workloads[0]))
        return Work(task.key, text, str(target), mode, task.constants, task.name)


LINE = RelaxLine()
