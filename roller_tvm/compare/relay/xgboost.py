"""A learned cost model over Roller's own space: the same plans, lowering and measuring, but a search."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roller_tvm.baseline.space import RTileSpace
from roller_tvm.compare.relay.kernels import build_record, why_wrong
from roller_tvm.compare.relay.tasks import Opened
from roller_tvm.compare.searching import search
from roller_tvm.errors import MeasureError
from roller_tvm.measure.session import CHECK, PACKED


def tune(opened: Opened, trials: int) -> dict[str, Any]:
    """Search as long as there are trials; the fastest whose answer is right."""
    from roller_tvm.relay.candidates import packed_operands
    from roller_tvm.relay.measure import layout_mode, packs_weights
    from roller_tvm.te.read import read_te

    task, dag = opened.search_task, opened.dag
    packed = packed_operands(dag) if layout_mode(task) == PACKED else ()
    reading = read_te(dag, name=opened.case.id, constants=packed)
    with _Measuring(opened, reading) as measuring:

        def build(plan: Any) -> tuple[Path, str]:
            line = measuring.lines[tuple(plan.programs)]
            return build_record(opened.key, dag, opened.target, packs_weights(task), line, opened.kernels), line

        space = RTileSpace(reading.expression, opened.device)
        found = search(space, trials, measuring, build, why_wrong, opened.work("xgboost"), opened.case.title)
    return {**found, "kernel": opened.told(found["kernel"])} if "kernel" in found else found


class _Measuring:
    """Measures batches of plans in the worker processes that Roller's tuner has."""

    def __init__(self, opened: Opened, reading: Any) -> None:
        from roller_tvm.relay.loops import TeProgram
        from roller_tvm.relay.measure import Limits, layout_mode
        from roller_tvm.relay.pool import Pool

        self.opened, self.limits = opened, Limits()
        self.program = TeProgram.of_reading(reading, list(opened.dag.tensors))
        self.mode = layout_mode(opened.search_task)
        self.pool = Pool(opened.device.units, opened.device.units)
        self.folder = tempfile.TemporaryDirectory(prefix="roller-tvm-")
        self.lines: dict[Any, str] = {}

    def __enter__(self) -> _Measuring:
        from tvm.runtime._ffi_node_api import SaveJSON

        self.pool.start()
        for worker in self.pool.workers:  # imports are not tuning
            worker.call("hello", (), 120.0)
        o, limit = self.opened, self.limits.reference_s
        opening = ("open_task", (o.key, str(SaveJSON(o.dag.tensors)), str(o.target), self.mode == PACKED), limit)
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
        from roller_tvm.measure.session import Session

        lines: dict[int, str] = {}
        for number, ranked in enumerate(plans):
            try:
                lines[number] = self._line(ranked.plan)
            except Exception:  # steps that do not apply: a plan that does not work
                continue
            self.lines[tuple(ranked.plan.programs)] = lines[number]
        seconds = [math.inf] * len(plans)
        if lines:
            chosen = list(lines)
            session = Session(self.pool, self.limits, {}, self.opened.key, self.mode, [lines[n] for n in chosen],
                              self.limits.options())  # fmt: skip
            for number, outcome in zip(chosen, session.each_timed(), strict=True):
                seconds[number] = outcome.seconds if outcome.ok else math.inf
        return seconds

    def _line(self, plan: Any) -> str:
        """The record of a plan, weights packed where ``relay.build`` can."""
        from roller_tvm.lower import lower
        from roller_tvm.relay.apply_state import apply_steps_state
        from roller_tvm.relay.candidates import packable
        from roller_tvm.relay.measure import record_line
        from roller_tvm.relay.packing import keep_layout

        steps = tuple(lower(plan))
        if (self.mode == PACKED and not packable(self.program, steps)) or self.mode == CHECK:
            steps = keep_layout(dict(self.program.ops), steps)
        return record_line(self.opened.search_task, apply_steps_state(self.opened.dag, self.program, steps))
