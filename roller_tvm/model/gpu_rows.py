"""Micro-performance model of recipe gpu.rows: the lanes of a block walk rows together, stage after stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from ..device import DeviceSpec
from ..expr import TensorExpression
from .estimate import LevelTime, ProgramEstimate
from .geometry import Geometry
from .gpu import IN_FLIGHT, INSTRUCTIONS, GpuRates, busiest_unit, in_waves, instructions
from .gpu_direct import LOAD_OVERHEAD, TREE_SLOTS
from .occupancy import occupancy
from .registers import register_cap

# Registers of a thread, as compiled for sm_75 and sm_90 (40 candidates of five softmaxes): the compiler unrolls a
# lane's walk along the row and loads ahead. For longer walks it is unknown how far.
ROW_REGISTERS, PER_ELEMENT = 21, 1.2
#: Most elements of a row that a lane walks.
WALK = 96


class Rows(Protocol):
    """Attributes of a nest over rows that the model needs."""

    @property
    def kept(self) -> tuple[str, ...]: ...
    @property
    def output(self) -> str: ...
    @property
    def inlined(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class RowShape:
    """A candidate of recipe gpu.rows."""

    rows: int  # of a block
    lanes: int  # threads that share a row
    vector: int  # elements that a lane moves at a time
    own: int  # elements of a row that a lane computes
    count: int  # rows of the operator
    length: int  # elements of a row

    @property
    def threads(self) -> int:
        return self.rows * self.lanes


def rows_shared_bytes(
    expression: TensorExpression, kept: Sequence[str], read: Sequence[str], device: DeviceSpec, shape: RowShape
) -> int:  # fmt: skip
    """Return a block's shared memory, bytes: rows of inputs, and each reduction's share (``reduce_shared_bytes``).

    Parameters
    ----------
    kept : sequence of str
        Stages of the nest before the output.
    read : sequence of str
        Inputs whose rows are kept.
    """
    def element(name: str) -> int:
        tensor = expression.tensors[name]
        return tensor.bytes // tensor.elements

    warp = device.vector_width
    total = sum(element(name) * shape.rows * shape.length for name in read)
    for name in kept:
        if expression.stage(name).reduce and shape.lanes > warp:
            total += element(name) * shape.rows * (1 + shape.lanes // warp)
    return total


def rows_estimate(
    expression: TensorExpression, device: DeviceSpec, nest: Rows, read: Sequence[str], shape: RowShape
) -> ProgramEstimate | None:
    """Return the predicted time of recipe gpu.rows, or None if not even one block fits on a unit.

    Parameters
    ----------
    nest : RowNest
    read : sequence of str
        Inputs whose rows are kept in shared memory and so loaded once.
    """
    rates = GpuRates.of(device, expression.tensors[nest.output].dtype)
    nests = [Geometry.of(expression, name, nest.inlined) for name in (*nest.kept, nest.output)]
    registers = ceil(ROW_REGISTERS + PER_ELEMENT * shape.own) + shape.vector
    registers = min(registers, register_cap(device, shape.threads) or registers)
    shared = rows_shared_bytes(expression, nest.kept, read, device, shape)
    resident, limit = occupancy(device, shape.threads, registers, shared)
    if resident == 0:
        return None
    blocks = ceil(shape.count / shape.rows)
    resident = min(resident, ceil(blocks / device.units))
    busiest, waves = busiest_unit(device, blocks, resident)

    mine = set(nest.kept) | {nest.output}
    slots = loaded = staged = 0.0
    for g in nests:
        slots += instructions(g) * shape.own
        for op in g.operands:
            functions = sum(n * INSTRUCTIONS[kind] for kind, n in op.functions)
            slots += (op.arithmetic + functions) * shape.own
            if op.elements_whole < shape.length:
                continue
            loaded += shape.own * any(a.tensor not in mine and a.tensor not in read for a in op.sources)
            staged += shape.own * any(a.tensor in read for a in op.sources)
    fetched = len(read) * shape.own
    slots += loaded * (1 + LOAD_OVERHEAD) + staged + (2 * fetched + shape.own) / shape.vector
    reductions = [g for g in nests if g.stage.reduce]
    doublings = shape.lanes.bit_length() - 1
    slots += TREE_SLOTS * doublings * len(reductions)

    warps = ceil(shape.threads / device.vector_width)
    output = expression.tensors[nest.output]
    outside_bytes = {a.tensor: expression.tensors[a.tensor].bytes
                     for g in nests for op in g.operands for a in op.sources if a.tensor not in mine}
    element = output.bytes // output.elements
    far = float(sum(outside_bytes.values()) + output.bytes)
    near = (loaded + fetched) * element * shape.threads + output.bytes / blocks
    wavefronts = (staged + fetched) * element * shape.threads / rates.shared
    issue = slots * warps / rates.issue
    dram, l2 = far / blocks / rates.dram, near / rates.l2
    rounds = max(1.0, shape.own / shape.vector / IN_FLIGHT)
    if not read:  # every stage waits for the row again
        rounds *= len(nests)
    trees = len(reductions) * (doublings + 2 * (shape.lanes > device.vector_width)) * rates.shared_latency
    # A block alone does one after the other: the row comes, is walked, and goes.
    chain = rates.dram_latency * rounds + max(dram, l2) + trees + issue * rates.issue / min(warps, rates.issue)
    terms = {"issue": issue, device.far.name: dram, "l2": l2, "shared": wavefronts}
    seconds, bound = in_waves(device, rates, terms, chain, resident, busiest, blocks)
    scale = blocks / device.units * rates.cycle
    levels = (
        LevelTime(device.far.name, far, dram * scale),
        *([LevelTime("l2", near * blocks, l2 * scale)] if device.has("l2") else []),
    )
    flops = sum(g.stage.flops for g in nests)
    compute = flops / 2 / (rates.lanes * device.units) * rates.cycle
    return ProgramEstimate(
        seconds, compute, levels, bound, flops, blocks, waves, resident,
        limit, shape.threads, registers, shared, blocks / max(1, busiest * device.units),
    )  # fmt: skip
