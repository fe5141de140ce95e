"""A task open on the Relax line: kernels built from MetaSchedule's records, checked by Roller's worker."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roller_bench.files import keep_folder
from roller_bench.task import OpenedTask, Order, Searched
from roller_tvm.errors import UnsupportedOperator
from roller_tvm.roller.features import Features
from roller_tvm.tuning.measurer import Measurer
from roller_tvm.tuning.session import PACKED, PLAIN
from roller_tvm.tuning.supervise import Pool


@dataclass
class Opened(OpenedTask):
    """A task open in a job.

    Parameters
    ----------
    text : str
        Module as JSON.
    mod : IRModule
    constants : tuple of int
        Positions of the parameters that are weights: passed packed if a record packs them.
    ours : bool
        True to build as Roller's pipeline builds for a CPU, False as TVM does (see ``relax.cpu_code``).
    """

    line = "relax"
    text: str
    mod: Any
    constants: tuple[int, ...]
    ours: bool = False

    @property
    def modes(self) -> tuple[int, int]:
        return PLAIN, PACKED

    def as_prepared(self) -> Opened:
        """Return the task as ``relax.build`` builds it for a CPU, else the task itself."""
        return replace(self, ours=self.target.kind.name == "llvm")

    def file_of(self, text: str) -> Path:
        """Return the path of a kernel; Roller's build and TVM's build of one record have different paths."""
        built = self.key + text + "stack, ahead" * self.ours
        return self.kernels / f"{hashlib.sha256(built.encode()).hexdigest()[:16]}.so"

    def open_reference(self) -> None:
        if self.key not in self.worker.TASKS:
            self._make_reference(self.kernels / self.key)
            self.worker.load_reference(self.key, str(self.kernels / self.key))
        self.worker.TASKS[self.key].workload.ours = self.ours

    def _make_reference(self, folder: Path) -> None:
        """Open the task in this process, and fill a folder with its reference answers unless it exists."""
        self.worker.open_task(self.key, self.text, str(self.target), self.constants)
        keep_folder(folder, lambda part: self.worker.make_reference(self.key, part))

    def default_kernel(self) -> Path:
        if (path := self.file_of("")).exists():
            return path
        self.open_reference()
        return self.build_plain(self.text, "")

    def shapes_of(self, number: int, mode: int) -> list[tuple[list[int], str]]:
        built = self.worker.TASKS[self.key].built[number, mode]
        return [([int(e) for e in b.shape], str(b.dtype)) for b in built.tensors]

    def candidates(self, top: int, order: Order | None, most: int | None = None) -> Iterator[tuple[Any, Any]]:
        from roller_tvm.relax.candidates import make_candidates

        found = make_candidates(self.mod["main"], self.device, top, self.constants, self.case.id)
        if found.reason:
            raise UnsupportedOperator(found.reason, self.case.id)
        if order is not None:
            places = {id(plan): place for place, plan in enumerate(order([p.ranked for p in found.plans]))}
            found.plans.sort(key=lambda plan: places[id(plan.ranked)])
        self.failures = found.failures  # filled while plans are scheduled
        yield from ((plan.ranked, schedule) for plan, schedule in itertools.islice(found.schedules(), most))

    def record(self, schedule: Any) -> str:
        from roller_tvm.relax.record_lines import record_line

        return str(record_line(self.mod, schedule, self.target))

    def measured(self, pool: Pool, schedules: Sequence[Any]) -> Any:
        from roller_tvm.relax.line import LINE
        from roller_tvm.relax.tasks import Task

        task = Task(0, self.case.id, 1, self.mod["main"], (self.mod,), self.constants, self.key)
        lines, default = [self.record(schedule) for schedule in schedules], LINE.default(task, self.target)
        return Measurer(pool).measure(LINE.work(task, self.target), lines, default=default)

    def searched(self) -> Searched:
        from roller_tvm.codegen.apply_tensorir import apply_steps_tir
        from roller_tvm.planner.lower import lower
        from roller_tvm.tir.read import read_prim_func

        func = self.mod["main"]
        reading = read_prim_func(func, name=self.case.id, constants=self.constants)
        return Searched(
            reading.expression, Features.of_tensor_ir(self.device),
            (self.key, self.text, str(self.target), self.constants), PACKED if self.constants else PLAIN,
            lambda plan: self.record(apply_steps_tir(func, reading, tuple(lower(plan)))),
        )  # fmt: skip
