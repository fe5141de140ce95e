"""Lines that other cores of a CPU have written: how cores share a kernel, and how long they wait for one another's."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

import numpy as np

from ..device import DeviceSpec
from ..roller.candidates import Column, Tiles
from .cpu_caches import own_caches, step_bytes
from .cpu_constants import FROM_ANOTHER_CORE
from .cpu_rates import CpuRates
from .geometry import Geometry, Operand, Tile


def arriving(
    geometry: Geometry, device: DeviceSpec, rates: CpuRates, chunks: Tiles, tiles: Tiles, accumulators: Column,
    step: Column, number: Column, order: Sequence[int],
) -> Column:  # fmt: skip
    """Return the cycles in which a chunk waits for lines that another core has written.

    Cores share a kernel's rows, the first axis of its output: of an operand, each core has written its own. Of columns,
    or parts of rows, it needs those of all cores, also of blocks of channels that are added up, and of the planes that
    matrices known at compilation make (Winograd's): a core writes the same place of all planes. Multiply-adds fill the
    scheduler while they wait for a line, and no further line is asked for: few multiply-adds a line keep more lines
    under way (measured on two cores of an Emerald Rapids, operands written by both before: a product of 200 by 196 by
    80 waits 18, 29, 53 and 121 cycles for a line in tiles of 2 x 112, 5 x 80, 10 x 32 and 23 x 16).

    Parameters
    ----------
    chunks, tiles : tiles
        Extents of a parallel task, and of a register tile.
    accumulators : column
        Vectors of sums of a register tile.
    step : column
        Cycles of a step of the reduction.
    number : column
        Chunks.
    order : sequence of int
        Axes in the order of the chunks, outermost first.
    """
    g = geometry
    if (latency := _latency(device, rates)) is None or not g.reduce:
        return 0.0
    cut = shared_out(g, chunks, device.units, order)
    ahead = np.maximum(1.0, rates.scheduler / accumulators)  # steps of the reduction
    total: Column = 0.0
    for op in g.operands:
        if op in g.weights or op.source_bytes <= rates.caches[0][1]:  # such a tensor comes with the first tiles
            continue
        mine = [i for i in g.spatial if i in op.axes]
        whole = _written_whole(g, op)
        shared = [dim for d, dim in enumerate(op.dims) if d not in whole]
        rows = next((cut.get(i, 1) for dim in shared for i, _ in dim if g.extents[i] > 1), 1)
        touched = op.source_bytes / prod(cut[i] for i in mine) / rates.line * _kept(op.source_bytes, device, rates)
        lines = (1 - rows / device.units) * touched / -(-number // device.units)  # of a chunk
        places = prod(tiles[i] for i in mine)
        if g.vector_axis in op.axes:  # each step reads others
            together, at_once, hidden = np.ceil(places * op.element_bytes / rates.line) * ahead, 1, 0.0
        else:  # the rows go on to their next lines together
            moved = min(max(step_bytes(g, op), 1), rates.line) / rates.line
            together, at_once, hidden = places * np.maximum(1.0, ahead * moved), places, ahead * step
        waited = at_once * latency / np.minimum(rates.fill_buffers, together)
        total = total + lines / at_once * np.maximum(0.0, waited - hidden)
    return total


def between_nests(geometry: Geometry, device: DeviceSpec, rates: CpuRates) -> float:
    """Return the cycles in which a core waits for what another nest of this kernel has left with the other cores.

    For nests whose cores share other dimensions than that nest's: a core's part of a tensor is then everywhere. Told
    and measured on two cores of a Granite Rapids class server, Winograd's algorithm on 64 channels of 56 x 56 pixels:
    nest by nest 446 and 380 us, in slices 270 and 291; 512 channels of 28 x 28, nest by nest, 3650 and 3667.
    """
    if (latency := _latency(device, rates)) is None:
        return 0.0
    made = {stage.name for stage in geometry.expression.stages}
    passed = [op.source_bytes for op in geometry.operands if any(a.tensor in made for a in op.sources)]
    others = sum(size * _kept(size, device, rates) for size in passed) * (1 - 1 / device.units) / device.units
    return others / rates.line * latency / rates.fill_buffers


def _kept(size: float, device: DeviceSpec, rates: CpuRates) -> float:
    """Return the share of a tensor that is still in the own caches of the cores that wrote it."""
    own = own_caches(device)
    return min(1.0, rates.caches[own - 1][1] / (size / device.units)) if own else 0.0


def _written_whole(geometry: Geometry, op: Operand) -> set[int]:
    """Return the dimensions of an operand that a core has written whole: those of matrices known at compilation.

    Cores share the others, the first of them first.
    """
    stages = {stage.name: stage for stage in geometry.expression.stages}
    stage = stages.get(op.name)
    if stage is None or op.sources != (op.access,):  # another kernel's
        return set()
    matrices = [a for a in stage.reads if a.tensor in stages and not stages[a.tensor].reads]
    known = {axis for a in matrices for index in a.indices for axis in index.axes}
    return {d for d, index in enumerate(stage.write().indices) if known.intersection(index.axes)}


def left_alone(device: DeviceSpec, rates: CpuRates, read: float, chunks: Column) -> Column:
    """Return the cycles in which kernels of fewer chunks than cores wait for what the other cores have written.

    Measured on two cores of a Granite Rapids class server: means of 208 channels of 14 x 14 pixels, 163 kB, take 8 us
    on one core instead of 1.5. The kernel that scales them next, on both, takes 33 instead of 9.

    Parameters
    ----------
    read : float
        Bytes of tensors that other kernels have computed. What the nearest cache holds comes with the first lines.
    """
    if (latency := _latency(device, rates)) is None or read <= rates.caches[0][1]:
        return 0.0
    return np.maximum(0.0, 1 - chunks / device.units) * read / rates.line * latency / rates.fill_buffers


def torn(geometry: Geometry, device: DeviceSpec, rates: CpuRates, chunk: Tile, order: Sequence[int]) -> float:
    """Return the cycles in which a core waits for lines of the result of which another one writes a part.

    Cores that share the elements of each row meet within a line, unless rows and parts are whole lines. Half of the
    time the other core has it (measured on two cores of a Granite Rapids class server: rows of 72 and of 120 channels,
    of 6,400 and 1,600 pixels, in parts of 16 channels take 250 and 310 cycles for each such line more than was told;
    a line of the other core arrives in 490).

    Parameters
    ----------
    chunk : tuple of int
        Extents of a parallel task.
    order : sequence of int
        Axes in the order of the chunks, outermost first.
    """
    g, last = geometry, geometry.vector_axis
    if (latency := _latency(device, rates)) is None or last is None or chunk[last] >= g.extents[last]:
        return 0.0
    cut = shared_out(g, np.array(chunk), device.units, order)
    if cut[last] <= 1:
        return 0.0
    rows = prod(g.extents[i] for i in g.spatial if i != last) / prod(cut[i] for i in g.spatial if i != last)
    within = gcd(gcd(g.extents[last], chunk[last]) * g.output_bytes, rates.line)
    return float(rows) * (1 - within / rates.line) * latency / 2


def _latency(device: DeviceSpec, rates: CpuRates) -> float | None:
    """Return the cycles until a line of another core arrives, None if cores share no cache, or there is but one."""
    shared = next((level for level in device.levels[1:-1] if level.scope == "device"), None)
    if shared is None or device.units == 1:
        return None
    return FROM_ANOTHER_CORE * shared.latency_ns * 1e-9 / rates.cycle


def chunk_order(geometry: Geometry) -> list[int]:
    """Return the spatial axes in the order of the chunks: those of the largest operand stand outside.

    Neighbouring chunks, which a core has in turn, then share its parts: each core reads a part of it, and all of the
    others.
    """
    largest = max(geometry.operands, key=lambda op: op.source_bytes, default=None)
    outer = frozenset[int]() if largest is None else largest.axes
    return sorted(geometry.spatial, key=lambda i: i not in outer)


def shared_out(geometry: Geometry, chunks: Tiles, units: int, order: Sequence[int]) -> dict[int, Column]:
    """Return into how many parts the cores share each spatial axis: each has neighbouring chunks, in their order.

    `order` are the axes in the order of the chunks, outermost first.
    """
    left: Column = units
    parts: dict[int, Column] = {}
    for i in order:
        parts[i] = np.minimum(-(-geometry.extents[i] // chunks[i]), left)
        left = left / parts[i]
    return parts
