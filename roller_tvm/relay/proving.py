"""Proofs of TE schedules: lowered by TVM's own passes to loops, memory and barriers, then to integer sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.schedules.proofs import Proof, prove_lowered

#: Bytes to which StorageFlatten aligns.
_LINE = 64


def loops_of(schedule: Any, args: Sequence[Any]) -> Any:
    """Return a te.Schedule as loops over flat buffers that are as large as needed, with its barriers."""
    import tvm
    from tvm.driver.build_module import schedule_to_module

    passes = [
        tvm.tir.transform.InjectPrefetch(), tvm.tir.transform.StorageFlatten(_LINE), tvm.tir.transform.Simplify(),
        tvm.tir.transform.ThreadSync("shared"),
    ]  # fmt: skip
    return tvm.transform.Sequential(passes)(schedule_to_module(schedule, list(args), "main"))["main"]


def prove(schedule: Any, args: Sequence[Any], device: DeviceSpec | None = None, name: str = "") -> Proof:
    """Return the proof of a te.Schedule, held against the same outputs without one.

    Parameters
    ----------
    schedule : te.Schedule
    args : sequence of te.Tensor
        Arguments of the compiled function.

    Examples
    --------
    >>> prove(schedule, args).answer
    'proven'
    """
    from tvm import te

    outputs = [t.op for t in args if not isinstance(t.op, te.PlaceholderOp)]
    reference = loops_of(te.create_schedule(outputs), args)
    return prove_lowered(loops_of(schedule, args), reference, device, name, flat=True)
