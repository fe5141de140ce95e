"""A learned cost model over Roller's own space: the same plans, lowering and measuring, but a search."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roller_tvm.baseline.space import RTileSpace
from roller_tvm.compare.relax.kernels import build_record, why_wrong
from roller_tvm.compare.relax.tasks import Opened
from roller_tvm.compare.searching import search
from roller_tvm.errors import MeasureError
from roller_tvm.measure.session import PACKED, PLAIN


def tune(opened: Opened, trials: int) -> dict[str, Any]:
    """Search as long as there are trials; the fastest whose answer is right."""
    from roller_tvm.tir.read import read_prim_func

    reading = read_prim_func(opened.mod["main"], name=opened.case.id, constants=opened.constants)
    with _Measuring(opened, reading) as measuring:

        def build(plan: Any) -> tuple[Path, str]:
            line = measuring.lines[tuple(plan.programs)]
            kernel = build_record(opened.key, opened.text, opened.target, opened.constants, line, opened.kernels)
            return kernel, line

        space = RTileSpace(reading.expression, opened.device)
        found = search(space, trials, measuring, build, why_wrong, opened.work("xgboost"), opened.case.title)
    return {**found, "kernel": opened.told(found["kernel"])} if "kernel" in found else found


class _Measuring:
    """Measures batches of plans in the worker processes that Roller's tuner has."""

    def __init__(self, opened: Opened, reading: Any) -> None:
        from roller_tvm.measure.pool import Pool
        from roller_tvm.relax.measure import WORKER, Limits

        self.opened, self.reading, self.limits = opened, reading, Limits()
        self.mode = PACKED if opened.constants else PLAIN
        self.pool = Pool(opened.device.units, opened.device.units, WORKER)
        self.folder = tempfile.TemporaryDirectory(prefix="roller-tvm-")
        self.lines: dict[Any, str] = {}

    def __enter__(self) -> _Measuring:
        self.pool.start()
        for worker in self.pool.workers:  # imports are not tuning
            worker.call("hello", (), 120.0)
        o, limit = self.opened, self.limits.reference_s
        opening = ("open_task", (o.key, o.text, str(o.target), o.constants), limit)
        first = self.pool.workers[0]
        first.prepare([opening])
        reply = first.call("make_reference", (o.key, self.folder.name), limit)
        if not reply.ok:
            self.__exit__()
            raise MeasureError(f"no reference to check against: {reply.text}", o.case.id, kind="reference")
        for worker in self.pool.workers:
            worker.prepare([opening, ("load_reference", (o.key, self.folder.name), limit)])
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close()
        self.folder.cleanup()

    def __call__(self, plans: Sequence[Any]) -> list[float]:
        """Seconds of each plan, infinite where it does not work."""
        from roller_tvm.lower import lower
        from roller_tvm.measure.session import Session
        from roller_tvm.relax.database import record_line
        from roller_tvm.tir.apply import apply_steps_tir

        o = self.opened
        lines: dict[int, str] = {}
        for number, ranked in enumerate(plans):
            try:
                schedule = apply_steps_tir(o.mod["main"], self.reading, tuple(lower(ranked.plan)))
            except Exception:  # steps that do not apply: a plan that does not work
                continue
            lines[number] = self.lines[tuple(ranked.plan.programs)] = record_line(o.mod, schedule, o.target)
        seconds = [math.inf] * len(plans)
        if lines:
            chosen = list(lines)
            session = Session(self.pool, self.limits, {}, o.key, self.mode, [lines[n] for n in chosen],
                              self.limits.options())  # fmt: skip
            for number, outcome in zip(chosen, session.each_timed(), strict=True):
                seconds[number] = outcome.seconds if outcome.ok else math.inf
        return seconds
