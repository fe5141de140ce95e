"""Micro-performance model of recipe cpu.unrolled: a product with constant matrices, all of it for one vector."""

from __future__ import annotations

from math import ceil, prod

from ..device import DeviceSpec
from .cpu import GUARDED_LOADS, CpuRates, epilogue_cycles
from .cpu_direct import Cycles, streamed
from .estimate import ProgramEstimate
from .geometry import Geometry
from .gpu_unrolled import own_tile


def unrolled_estimate(geometry: Geometry, device: DeviceSpec, vector: int) -> ProgramEstimate:
    """Return the predicted time of recipe cpu.unrolled. Zeros of the constant matrices are unknown: none is skipped.

    Parameters
    ----------
    vector : int
        Neighbours along the vector axis that are computed at a time.
    """
    g = geometry
    rates = CpuRates.of(device, g)
    own = own_tile(g)
    outputs = prod(g.extents[i] for i in g.spatial)
    stored = prod(own[i] for i in g.spatial)
    vectors = outputs // stored // vector * ceil(vector / rates.lanes)
    read = [op for op in g.operands if not op.computed]
    inputs = sum(op.elements(own) for op in read)
    loads = inputs + sum(op.elements(own) * GUARDED_LOADS for op in read if op.guarded)
    # The last factor goes into the multiply-add; the products before it serve every output that they are part of.
    before = sum(1 for op in g.operands if op.computed) - 1
    products = before * inputs * max((own[i] for i in g.spatial), default=1)
    cycles = (prod(own) + products) / rates.fma + (loads + stored) / rates.loads
    cycles += epilogue_cycles(g, stored, stored * min(vector, rates.lanes), rates)
    moved = sum(op.source_bytes for op in read) + outputs * g.output_bytes + g.epilogue_bytes
    chunks = outputs // stored // vector
    flops = g.stage.flops + g.epilogue_flops * outputs
    return streamed(device, rates, [Cycles(vectors * cycles)], moved, chunks, flops)
