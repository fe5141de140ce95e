"""A schedule as a line of MetaSchedule's database, and the schedule that such a line makes of a module."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .. import foreign
from ..codegen.intrinsics import register
from ..errors import RecordError
from ..tir.nodes import structurally_equal
from ..tuning.record_rules import check_trace
from ..tuning.supervise import last_line
from .record_files import intrinsics_of
from .tasks import without_names


def record_of(workload: Any, trace: Any, target: Any, repeats: Sequence[float]) -> Any:
    """A MetaSchedule record of a trace on a workload."""
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo
    from tvm.s_tir.meta_schedule.database import TuningRecord

    arguments = ArgInfo.from_prim_func(workload.mod["main"])
    return TuningRecord(trace, workload, [float(s) for s in repeats], target, arguments)


def record_line(mod: Any, schedule: Any, target: Any) -> str:
    """A schedule of a normalised module as a database keeps it, which is what workers and later builds get."""
    from tvm.s_tir.meta_schedule.database import Workload

    return record_text(record_of(Workload(mod), schedule.trace, target, [0.0]))


def record_text(record: Any) -> str:
    """A record as a database's file has it; ``replay`` takes it."""
    from tvm.s_tir.meta_schedule import _ffi_api

    # TVM's own `as_json` knows no layouts in a trace; its files hold them as text.
    return json.dumps(_plain(_ffi_api.TuningRecordAsJSON(record)))


def _plain(value: Any) -> Any:
    """A JSON value of TVM's in Python's types, as TVM writes it to a database's files."""
    import tvm

    if value is None or isinstance(value, (int, float)):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (tvm.tirx.IntImm, tvm.tirx.FloatImm)):
        return value.value
    if hasattr(value, "items"):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if hasattr(value, "__len__") else str(tvm.ir.save_json(value))


def replay(mod: Any, line: str) -> Any:
    """A schedule of the module with a record's trace applied, if it is a tuner's.

    Raises
    ------
    ValueError
        The trace holds something that no tuner emits.
    """
    from tvm import s_tir
    from tvm.s_tir.meta_schedule.database import TuningRecord, Workload

    check_trace(foreign.loads(line))
    for name in intrinsics_of(line):
        register(name)
    schedule = s_tir.Schedule(mod)
    TuningRecord.from_json(json.loads(line), Workload(mod)).trace.apply_to_schedule(schedule, False)
    return schedule


def copies_ahead(line: str) -> bool:
    """Return whether a record's trace has asynchronous copies, which run if the build enables ``tirx.use_async_copy``.
    """
    return "software_pipeline_async_stages" in line


def check_replay(mod: Any, schedule: Any, target: Any, name: str) -> None:
    """Only the trace is recorded: it must give the module that was measured.

    Raises
    ------
    RecordError
    """
    try:
        same = structurally_equal(_body(replay(mod, record_line(mod, schedule, target)).mod), _body(schedule.mod))
    except Exception as error:  # TVM's, of a trace that does not apply
        raise RecordError(f"its trace does not replay: {last_line(error)}", name) from error
    if not same:
        raise RecordError("replaying its trace gives another module", name)


def _body(mod: Any) -> Any:
    return without_names(mod["main"])
