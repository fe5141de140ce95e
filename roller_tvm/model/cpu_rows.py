"""Micro-performance model of recipe cpu.rows: every stage of a row while the row is in the nearest cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..device import DeviceSpec
from ..expr import TensorExpression
from .cpu import CpuRates
from .cpu_direct import stage_cycles, streamed
from .estimate import ProgramEstimate
from .geometry import Geometry


def rows_estimate(
    expression: TensorExpression, device: DeviceSpec, stages: Sequence[str], inlined: Sequence[str],
    vectors: Mapping[str, int], rows: int, parallel: bool,
) -> ProgramEstimate:  # fmt: skip
    """Return the predicted time of recipe cpu.rows.

    Parameters
    ----------
    stages : sequence of str
        Stages computed for each row, in order; the last one is the output.
    vectors : mapping of str to int
        Stage -> neighbours computed at a time.
    rows : int
        Trips of the loop over rows.
    """
    output = expression.tensors[stages[-1]]
    nests = [Geometry.of(expression, name, inlined) for name in stages]
    rates = CpuRates.of(device, nests[-1])
    cycles = [stage_cycles(g, CpuRates.of(device, g), vectors[g.stage.name]) for g in nests]
    outside = {a.tensor for g in nests for op in g.operands for a in op.sources if a.tensor not in stages}
    moved = sum(expression.tensors[t].bytes for t in outside) + output.bytes
    held = sum(expression.tensors[t].bytes for t in {*stages, *outside}) / rows
    flops = sum(g.stage.flops for g in nests)
    if held > rates.caches[-1][1]:  # a row that no cache holds comes again for every stage
        moved += sum(2 * expression.tensors[name].bytes for name in stages[:-1])
    estimate = streamed(device, rates, cycles, moved, rows if parallel else 1, flops, rows)
    return replace(estimate, shared_bytes=int(held))
