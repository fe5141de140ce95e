"""Registers of a register tile: does it fit without spilling, and how many will the compiler take?

The numbers below describe the compiler, not a device. They were fitted once on the kernels of 380 random plans of
matrix products and convolutions (``benchmarks/register_fit.csv``) and of 2400 constructed ones
(``python/fit_registers.py`` prints the fit), compiled by NVRTC 12.9 for sm_75 to sm_90. A device's limits come from
its spec.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

from ..device import DeviceSpec
from .geometry import Geometry, Tile

# Addresses, loop counters and predicates beside accumulators and fragments. With fewer registers for them, 18 of 18
# plans spilled.
ADDRESSES = 24
# Share of the cap that a plan may need: ptxas aims below it for occupancy. Of constructed plans that needed more
# than this, 15 of 60 spilled (loop-invariant addresses, a few bytes), of the others 18 of 408.
USABLE = 0.75
# Registers that the compiler takes (quantile regression at 0.9, so that few kernels take more): accumulators, both
# fragments of a step, part of the unrolled steps' reads, fetched values and their addresses, other addresses.
BASE = 36
PER_ACCUMULATOR = 1.4
PER_FRAGMENT = 2.0
PER_PREFETCHED = 0.12
PREFETCHED_MOST = 128
PER_FETCH = 1.0
PER_FETCHED = 0.35
# Guarded fetches are all prepared (addresses, predicates) before the first is made, however small the tile.
PER_GUARDED_FETCH = 5
# ptxas hands out registers by eights (the rounding of its targets for occupancy).
ROUNDED_TO = 8
# Multiply-adds in the unrolled body of a thread: enough for vector loads and to hide the loop, and for a whole window
# up to the second number. Beyond it lowering and compiling take seconds, and ptxas spills what it hoists.
STATEMENTS = 512
WINDOW_STATEMENTS = 1024
# Accumulators of a thread, and vectors it fetches of one operand at a time: beyond these the share of spills grows.
ACCUMULATORS = 128
FETCHES = 16


def _words(count: int, element_bytes: int) -> int:
    """Return the registers for elements of a type; a half takes a whole one unless the compiler pairs it."""
    return count * max(1, element_bytes // 4)


def accumulators(geometry: Geometry, thread: Tile) -> int:
    """Return the registers that hold a thread's outputs."""
    return _words(prod([thread[i] for i in geometry.spatial]), geometry.accumulator_bytes)


def fragments(geometry: Geometry, thread: Tile) -> list[int]:
    """Return each operand's registers for a thread's reads in one reduction step. Cached: do not change the list."""
    known = geometry.counted.get(("fragments", thread))
    if known is None:
        known = geometry.counted["fragments", thread] = [
            _words(prod(thread[i] for i in op.axes if i in geometry.spatial_set), op.element_bytes)
            for op in geometry.operands
        ]
    return known


def register_cap(device: DeviceSpec, threads: int) -> int | None:
    """Return the most registers per thread with which a block of `threads` fits; None if no limit is known.

    Never above the limit that kernels are compiled with (`Limits.compiled_registers`).

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> [register_cap(load_device("a100"), t) for t in (256, 448, 640, 784)]
    [255, 128, 96, 72]
    """
    share = _share(device, threads)
    return share if share is None else min(share, device.limits.compiled_registers or share)


def _share(device: DeviceSpec, threads: int) -> int | None:
    """Return a thread's share of the register file: each scheduler of a unit has its own part, and its own warps."""
    limits = device.limits
    file = limits.max_registers_per_block or limits.registers_per_unit
    if not file:
        return limits.max_registers_per_thread
    schedulers = limits.schedulers_per_unit or 1
    warps = ceil(ceil(threads / device.vector_width) / schedulers) * schedulers
    granularity = max(1, (limits.register_granularity or 1) // device.vector_width)
    share = file // (warps * device.vector_width) // granularity * granularity
    return min(share, limits.max_registers_per_thread or share)


def usable_registers(device: DeviceSpec, threads: int) -> int | None:
    """Return the upper limit for ``needed_registers``; None if the device's limit is unknown."""
    cap = _share(device, threads)
    return None if cap is None else int(USABLE * cap)


def needed_registers(geometry: Geometry, device: DeviceSpec, thread: Tile) -> int:
    """Return the number of registers below which a register tile spills.

    The arithmetic registers of an IPU's workers hold no addresses.
    """
    addresses = ADDRESSES if device.kind == "gpu" else 0
    return accumulators(geometry, thread) + sum(fragments(geometry, thread)) + addresses


def prefetched(geometry: Geometry, thread: Tile, unrolled: Tile) -> list[int]:
    """Return each operand's registers for a thread's reads in unrolled steps. Cached: do not change the list."""
    known = geometry.counted.get(("prefetched", thread, unrolled))
    if known is None:
        own = tuple(unrolled[i] if i in geometry.reduce else e for i, e in enumerate(thread))
        known = [_words(op.elements(own), op.element_bytes) for op in geometry.operands]
        geometry.counted["prefetched", thread, unrolled] = known
    return known


def predicted_registers(
    geometry: Geometry, device: DeviceSpec, thread: Tile, unrolled: Tile, threads: int,
    fetches: Sequence[int] = (), vectors: Sequence[int] = (),
) -> int:  # fmt: skip
    """Return the registers that the compiler is expected to take, for occupancy.

    Parameters
    ----------
    unrolled : Tile
        For each reduction axis, the unrolled iterations of a step; other positions are ignored.
    fetches, vectors : sequence of int
        For each operand, a thread's fetches in a step, and the elements of each.
    """
    parts = fragments(geometry, thread)
    held = accumulators(geometry, thread)
    smaller = sum(parts) - max(parts, default=0)
    if device.kind == "gpu":
        ahead = sum([min(n, PREFETCHED_MOST) for n in prefetched(geometry, thread, unrolled)])
        fetched = sum([n * v for n, v in zip(fetches, vectors, strict=True)])
        guarded = sum([n for n, op in zip(fetches, geometry.operands, strict=False) if op.guarded])
        raw = BASE + PER_ACCUMULATOR * held + PER_FRAGMENT * smaller + PER_PREFETCHED * ahead
        raw = max(raw + PER_FETCH * sum(fetches) + PER_FETCHED * fetched, BASE + PER_GUARDED_FETCH * guarded)
        raw = ceil(raw / ROUNDED_TO) * ROUNDED_TO
    else:
        raw = held + sum(parts)
    cap = register_cap(device, threads)
    return raw if cap is None else min(raw, cap)


def unrolled_steps(geometry: Geometry, thread: Tile, step: Tile) -> Tile:
    """Return, per axis, how many of a step's reduction iterations are unrolled: inner axes first, dividing the step.

    Examples
    --------
    >>> from roller_tvm.ir.operators import matmul
    >>> g = Geometry.of(matmul(m=1024, n=1024, k=1024), "matmul")
    >>> unrolled_steps(g, (8, 8, 1), (64, 64, 32))
    (1, 1, 8)
    """
    body = prod(thread[i] for i in geometry.spatial)
    key = ("unrolled", body, tuple(step[i] for i in geometry.reduce))
    known = geometry.counted.get(key)
    if known is None:
        result = [1] * len(thread)
        for i in reversed(geometry.reduce):
            most = WINDOW_STATEMENTS if i in geometry.window else STATEMENTS
            result[i] = max(d for d in range(1, step[i] + 1) if step[i] % d == 0 and (d == 1 or body * d <= most))
            body *= result[i]
        known = geometry.counted[key] = tuple(result)
    return known
