"""The Relay line (TVM 0.13 to 0.19): tasks of a Relay model, States as candidates, Ansor's record files."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.relay.candidates import make_candidates
from roller_tvm.relay.dense_weights import packable
from roller_tvm.relay.fuse_rtasks import FuseRTasks, fusion_of
from roller_tvm.relay.records import (
    Note,
    RecordWriter,
    best_notes,
    kept_line,
    read_kept,
    read_records,
    record_text,
)
from roller_tvm.relay.tasks import Task, check_device, extract_tasks, find_device, make_target
from roller_tvm.relay.worker_side import record_line, work_of
from roller_tvm.tuning.candidates import Candidates
from roller_tvm.tuning.claims import Claims
from roller_tvm.tuning.line import Model, Tasks, require
from roller_tvm.tuning.measurer import Work
from roller_tvm.tuning.results import TunedTask, resumed
from roller_tvm.tvm_env import import_relay_tvm


class RelayRecords:
    """A file in Ansor's format; several tuners may write to it. See ``tuning.line.Records``.

    Parameters
    ----------
    log_file : path or None
        Made if it is missing, and mended.
    target : Target
    """

    notes: Sequence[str] = ()
    untimed = ""

    def __init__(self, log_file: str | os.PathLike[str] | None, target: Any) -> None:
        self.target = target
        self.place = str(Path(log_file)) if log_file else None
        self.writer = RecordWriter(log_file) if log_file is not None else None
        self._notes: dict[tuple[str, str], Note] = {}
        self._kept: dict[tuple[str, str], tuple[str, int]] = {}
        self._best: dict[tuple[str, str], float] = {}
        if self.writer is not None:
            self._read(self.writer.path)
            self.writer.mend()

    def _read(self, path: Path) -> None:
        records = read_records(path)
        self._notes.update(best_notes(records))
        for record in records:
            if record.error_no == 0:
                task = record.workload_key, record.target
                self._best[task] = min(record.cost, self._best.get(task, math.inf))
        self._kept.update(read_kept(path))

    def claims(self) -> Claims:
        """Return claims on the tasks of the file."""
        return Claims(self.writer.path if self.writer is not None else None)

    def known(self, task: Task, trials: int) -> TunedTask | None:
        """Return a task's result if the file has it from so many trials."""
        if self.writer is not None and self.writer.grew():  # another tuner of this file
            self._read(self.writer.path)
        note = self._notes.get((task.key, task.target))
        if note is not None and note.trials >= trials and note.computation in ("", task.computation):
            return resumed(task, note)
        reason, tried = self._kept.get((task.key, task.target), ("", -1))
        if reason and tried >= trials:
            return TunedTask(task, "fallback", Candidates(), reason=reason, kept=True)
        return None

    def write(self, tuned: TunedTask, schedule: Any, trials: int, seconds: float) -> list[str]:
        """Append a winner's record, or withdraw ours and keep TVM's own kernel."""
        task = tuned.task
        if self.writer is None:
            return []
        if schedule is not None:
            timed = tuned.status == "measured"
            note = Note(tuned.plan.plan.digest(), tuned.predicted_s, tuned.seconds if timed else None,
                        trials if timed else 0, tuned.checked, tuned.candidates.flops or None,
                        task.computation)  # fmt: skip
            self.writer.append(record_text(task.search_task, schedule, note, seconds))
        elif tuned.kept:
            self.writer.withdraw(task.key, task.target)  # what an earlier tuning took without it
            self.writer.append(kept_line(task.key, task.target, tuned.reason, trials))
        return []

    def best_seconds(self, task: Task) -> float:
        return self._best.get((task.key, task.target), math.nan)

    def report(self, text: str) -> None:
        """Keep nothing: a record file has no place for it."""

    def close(self) -> None:
        """Do nothing: the file is open only while it is written."""


class RelayLine:
    """See ``tuning.line.Line``."""

    name = "relay"
    features = frozenset({"shared_records", "winograd"})

    def target(self, target: Any) -> Any:
        """Return a target with a host."""
        import_relay_tvm("tuning a Relay model")
        return make_target(target)

    def device(self, device: DeviceSpec | str | None, target: Any) -> DeviceSpec:
        spec = find_device(target if device is None else device, device is None)
        check_device(spec, target)
        return spec

    def records(self, place: Any, target: Any) -> RelayRecords:
        return RelayRecords(place, target)

    def tasks(self, model: Model, target: Any, device: DeviceSpec, names: Sequence[str] | None = None) -> Tasks:
        if names:
            require(self, "names")
        return extract_tasks(model.mod, model.params, target, device)

    def without_fused(self, model: Model, target: Any, device: DeviceSpec, fuse: Any = True) -> tuple[Model, Any]:
        """Return a model after ``FuseRTasks``, as a build with records makes it, and the ``GraphFusion``."""
        tvm = import_relay_tvm("fusing rTasks of a Relay model")
        mod, axes = packable(model.mod, model.params, target)  # as build does: what is fused depends on it
        with axes, tvm.transform.PassContext(opt_level=3, config={"relay.backend.use_auto_scheduler": True}):
            left = (FuseRTasks(target, device, model.params) if fuse is True else fuse)(mod)
        return Model(left), fusion_of(left)

    def candidates(self, task: Task, device: DeviceSpec, top: int) -> Candidates:
        """Return a task's plans, some with and without packed weights."""
        return make_candidates(task, device, top)

    def record(self, task: Task, schedule: Any, target: Any) -> str:
        """Return a State's line in a record file."""
        return record_line(task.search_task, schedule)

    def default(self, task: Task, target: Any) -> str:
        """Return TVM's own kernel as lowered TIR."""
        return task.default

    def work(self, task: Task, target: Any) -> Work:
        return work_of(task.search_task, task.weights, task.name)


LINE = RelayLine()
