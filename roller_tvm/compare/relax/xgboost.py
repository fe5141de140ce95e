"""A learned cost model over Roller's own space: the same plans, lowering and measuring, but chosen by search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roller_tvm.baseline.space import RTileSpace
from roller_tvm.compare.measuring import PlanMeasuring
from roller_tvm.compare.relax.kernels import build_record
from roller_tvm.compare.relax.tasks import Opened
from roller_tvm.compare.searching import search
from roller_tvm.roller.features import Features
from roller_tvm.tuning.session import PACKED, PLAIN


def tune(opened: Opened, trials: int, tuner: str) -> dict[str, Any]:
    """Search for `trials` trials; return the fields of ``results.Tuned`` for the fastest kernel with a right answer."""
    from roller_tvm.tir.read import read_prim_func
    from roller_tvm.tuning.session import Limits
    from roller_tvm.tuning.supervise import Pool

    o, units = opened, opened.device.units
    reading = read_prim_func(o.mod["main"], name=o.case.id, constants=o.constants)
    opening = (o.key, o.text, str(o.target), o.constants)

    def record(plan: Any) -> str:
        from roller_tvm.codegen.apply_tensorir import apply_steps_tir
        from roller_tvm.planner.lower import lower
        from roller_tvm.relax.database import record_line

        return record_line(o.mod, apply_steps_tir(o.mod["main"], reading, tuple(lower(plan))), o.target)

    mode = PACKED if o.constants else PLAIN
    with PlanMeasuring(Pool(units, units), Limits(), o.key, opening, mode, record) as measuring:

        def build(plan: Any) -> tuple[Path, str]:
            line = measuring.lines[tuple(plan.programs)]
            return build_record(o.key, o.text, o.target, o.constants, line, o.kernels, o.ours), line

        space = RTileSpace(reading.expression, o.device, Features.of_tensor_ir(o.device))
        return search(space, trials, measuring, build, o, tuner)
