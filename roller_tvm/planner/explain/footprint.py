"""The footprint of an rProgram at each memory level, against its capacity, and the storage padding of rule 3."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod

from ...device import DeviceSpec
from ...micro_perf.cpu_rates import CpuRates
from ...micro_perf.estimate import ProgramEstimate
from ...micro_perf.geometry import Geometry, Operand
from ...micro_perf.storage import storage_elements
from ...recipes import RECIPES
from ...recipes.staging import storage_alignment
from ...roller.rprogram import RProgram
from .words import capacity, count, share


def held_lines(
    program: RProgram, estimate: ProgramEstimate, geometry: Geometry, device: DeviceSpec
) -> list[str]:
    """Return one line per level: the bytes kept there, against its capacity."""
    if RECIPES[program.recipe].on_cpu:
        return list(_cpu(program, estimate, geometry, device))
    return list(_gpu(program, estimate, geometry, device))


def _of(used: float, limit: float) -> str:
    return f"{capacity(used)} of {capacity(limit)} ({share(used / limit)})"


def _gpu(program: RProgram, estimate: ProgramEstimate, g: Geometry, device: DeviceSpec) -> Iterator[str]:
    limits = device.limits
    if program.copies_tiles:
        block = tuple(program.tile("shared")[a] for a in g.axes)
        padding = dict(program.tile("shared").padding)
        aligned = storage_alignment(g, program)
        parts = []
        for op in g.operands:
            box = op.box(block)
            size = storage_elements(box, aligned[op.name]) * op.element_bytes
            pad = f"+{padding[op.name]}" if padding.get(op.name) else ""
            parts.append(f"{op.name} {'x'.join(map(str, box))}{pad} {capacity(size)}")
        static = limits.shared_per_block_bytes or device.level("shared").capacity_bytes
        stages = program.choice("stages", 1)
        dynamic = stages > 1 or program.choice("dynamic")
        most = limits.shared_per_block_optin_bytes or static if dynamic else static
        buffers = f", {count(stages, 'buffer')} of each" if stages > 1 else ""
        yield f"shared    {_of(estimate.shared_bytes, most)} a block: {', '.join(parts)}{buffers}"
    elif estimate.shared_bytes:
        most = limits.shared_per_block_bytes or device.level("shared").capacity_bytes
        yield f"shared    {_of(estimate.shared_bytes, most)} a block: partial results of its threads"
    outputs = RECIPES[program.recipe].accumulators(program, g, device)
    limit = limits.max_registers_per_thread
    known = f" of {limit} ({share(estimate.registers / limit)})" if limit else ""
    rest = max(0, estimate.registers - outputs)
    yield (
        f"register  {estimate.registers}{known} a thread, predicted: {count(outputs, 'accumulator')}, "
        f"{rest} for operands and addresses"
    )


def _cpu(program: RProgram, estimate: ProgramEstimate, g: Geometry, device: DeviceSpec) -> Iterator[str]:
    rates = CpuRates.of(device, g)
    spatial = {g.axes[i] for i in g.spatial}
    for tile, what in (
        (program.tile("l2"), "one chunk"),
        (program.tile("register"), "one register tile, whole reduction"),
    ):
        extents = tuple(tile[a] if a in spatial else e for a, e in zip(g.axes, g.extents, strict=True))
        inputs, outputs = g.input_bytes(extents), prod(tile[a] for a in spatial) * g.output_bytes
        fits = next((n for n, size, _ in rates.caches if inputs + outputs <= size), device.far.name)
        level = device.level(fits)
        yield (
            f"{fits:<9} {_of(inputs + outputs, level.capacity_bytes)}: {what}, "
            f"inputs {capacity(inputs)}, outputs {capacity(outputs)}"
        )
    if estimate.registers:
        limit = device.limits.vector_registers or 16
        tile = program.tile("register")
        last = "" if g.vector_axis is None else g.axes[g.vector_axis]
        sums = prod(ceil(tile[a] / rates.lanes) if a == last else tile[a] for a in spatial)
        what = f"{count(sums, 'accumulator')}, {estimate.registers - sums} for operands"
        if last and tile[last] % rates.lanes:
            lanes = ceil(tile[last] / rates.lanes) * rates.lanes
            what += f"; {tile[last]} of {lanes} lanes along '{last}' used ({share(tile[last] / lanes)})"
        yield f"register  {estimate.registers} of {limit} vectors of {device.vector_bytes} B: {what}"


def edge_lines(program: RProgram, geometry: Geometry) -> list[str]:
    """Return a line of rule 4, with its numbers, for every axis whose edge the tiles cross."""
    if not RECIPES[program.recipe].covers:
        return []
    lines = []
    for i in geometry.spatial:
        covered = axis = geometry.extents[i]
        for tile in program.tiles:
            covered = ceil(covered / tile[geometry.axes[i]]) * tile[geometry.axes[i]]
        if covered > axis:
            idle = share(1 - axis / covered)
            lines.append(f"tiles cover {covered} of the {axis} along '{geometry.axes[i]}' (rule 4): {idle} for nothing")
    return lines


def padding_lines(program: RProgram, geometry: Geometry, device: DeviceSpec) -> list[str]:
    """Return a line of rule 3, with its numbers, for every staged tensor."""
    if not program.copies_tiles or not device.has("shared") or not device.level("shared").banks:
        return []
    shared = device.level("shared")
    tile = program.tile("shared")
    block = tuple(tile[a] for a in geometry.axes)
    padding = dict(tile.padding)
    lines = []
    for op in geometry.operands:
        pad = padding.get(op.name, 0)
        row = op.box(block)[-1] if op.dims else 1
        width = max(1, shared.bank_bytes // op.element_bytes)
        if pad:
            lines.append(
                f"{op.name}: rows of {row} + {pad} elements, so that neighbouring rows start in different ones of "
                f"the {shared.banks} banks of {shared.bank_bytes} B"
            )
        else:
            lines.append(f"{op.name}: none, {_why_none(op, geometry, row, shared.banks * width)}")
    return lines


def _why_none(op: Operand, geometry: Geometry, row: int, width: int) -> str:
    last = geometry.spatial[-1]
    name = geometry.axes[last]
    walked = [d for d, dim in enumerate(op.dims) if any(a == last for a, _ in dim)]
    if not walked:
        return f"'{name}' does not occur in it: neighbouring threads read one element"
    if walked[-1] == len(op.dims) - 1:
        return f"neighbouring threads read neighbours along '{name}'"
    return f"rows of {row} elements already start in different banks (mod {width})"
