"""A learned cost model over Roller's own space: the same plans, lowering and measuring, but chosen by search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roller_tvm.baseline.space import RTileSpace
from roller_tvm.compare.measuring import PlanMeasuring
from roller_tvm.compare.relay.kernels import build_record
from roller_tvm.compare.relay.tasks import Opened
from roller_tvm.compare.searching import search
from roller_tvm.roller.features import Features
from roller_tvm.tuning.session import CHECK, PACKED


def tune(opened: Opened, trials: int, tuner: str) -> dict[str, Any]:
    """Search for `trials` trials; return the fields of ``results.Tuned`` for the fastest kernel with a right answer."""
    from tvm.runtime._ffi_node_api import SaveJSON

    from roller_tvm.codegen.apply_te import TeProgram
    from roller_tvm.relay.candidates import packed_operands
    from roller_tvm.relay.worker_side import layout_mode, packs_weights
    from roller_tvm.te.read import read_te
    from roller_tvm.tuning.session import Limits
    from roller_tvm.tuning.supervise import Pool

    task, dag = opened.search_task, opened.dag
    mode = layout_mode(task)
    reading = read_te(dag, name=opened.case.id, constants=packed_operands(dag) if mode == PACKED else ())
    program = TeProgram.of_reading(reading, list(dag.tensors))
    opening = (opened.key, str(SaveJSON(dag.tensors)), str(opened.target))
    units = opened.device.units

    def record(plan: Any) -> str:
        """Return the record of a plan, with weights packed if ``relay.build`` can."""
        from roller_tvm.codegen.apply_te import apply_steps_state, keep_layout
        from roller_tvm.planner.lower import lower
        from roller_tvm.relay.candidates import packable
        from roller_tvm.relay.worker_side import record_line

        steps = tuple(lower(plan))
        if (mode == PACKED and not packable(program, steps)) or mode == CHECK:
            steps = keep_layout(dict(program.ops), steps)
        return record_line(task, apply_steps_state(dag, program, steps))

    with PlanMeasuring(Pool(units, units), Limits(), opened.key, opening, mode, record) as measuring:

        def build(plan: Any) -> tuple[Path, str]:
            line = measuring.lines[tuple(plan.programs)]
            return build_record(opened.key, dag, opened.target, packs_weights(task), line, opened.kernels), line

        space = RTileSpace(reading.expression, opened.device, Features.of_te(opened.device))
        return search(space, trials, measuring, build, opened, tuner)
