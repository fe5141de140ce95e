"""rKernels from Roller's plans: their rTasks, and the time of each by the micro-performance model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, prod

from ..device import DeviceSpec
from ..device.frozen import FrozenMap
from ..ir import TensorExpression
from ..micro_perf.cpu import launch_seconds
from ..micro_perf.estimate import ProgramEstimate
from ..micro_perf.gpu import busiest_unit
from ..micro_perf.occupancy import occupancy
from ..planner.construction import RankedPlan
from ..planner.plan_cache import plan_cache
from ..roller.features import NO_FEATURES, Features
from ..roller.rprogram import Plan, RProgram
from .roperator import Edge, Phase, RKernel, ROperator
from .rtask import Tiling

#: Denominators of the device parts that an operator of a wide wave may get: rKernels are planned for those parts too.
SHARES = (4, 16)


def rkernels(plans: Sequence[RankedPlan], device: DeviceSpec) -> tuple[RKernel, ...]:
    """Return the rKernels of an operator's plans; 'plan 0' is that of the first plan."""
    return tuple(rkernel(f"plan {n}", ranked, device) for n, ranked in enumerate(plans))


def planned_rkernels(
    expression: TensorExpression, device: DeviceSpec, top: int = 10, features: Features = NO_FEATURES
) -> tuple[RKernel, ...]:  # fmt: skip
    """Return the rKernels that Roller constructs for an operator: for all of the device, and for parts of it.

    The best plan for an operator with the device to itself has many small rTasks, to fill it. If operators side by side
    fill it, larger rTasks that reuse more are more efficient. Roller finds those when it plans for a device of fewer
    units, with their share of the memory's bandwidth.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.ir.operators import conv2d_nchw
    >>> e = conv2d_nchw(n=1, c=64, h=32, w=32, f=64, kh=3, kw=3, padding=1)
    >>> found = planned_rkernels(e, load_device("v100"), top=4)
    >>> found[0].name, min(k.work for k in found) < found[0].work
    ('plan 0', True)
    """
    found = [*rkernels(plan_cache().construct(expression, device, top, features).plans, device)]
    if device.kind == "gpu":
        known = {k.plan for k in found}
        for share in SHARES:
            if device.units < share:
                continue
            part = part_of(device, share)
            for number, ranked in enumerate(plan_cache().construct(expression, part, top, features).plans):
                if ranked.plan not in known:
                    known.add(ranked.plan)
                    made = rkernel(f"1/{share} plan {number}", ranked, part)
                    found.append(replace(made, seconds=_by_itself(made.phases, ranked, device)))
    return tuple(found)


def part_of(device: DeviceSpec, share: int) -> DeviceSpec:
    """Return a device with 1/`share` of a device's units; see `of_units`.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> part = part_of(load_device("v100"), 4)
    >>> part.units, part.far.bandwidth_gbps
    (20, 225.0)
    """
    return of_units(device, device.units // share)


def of_units(device: DeviceSpec, units: int) -> DeviceSpec:
    """Return a device with fewer units, and the same part of all that the units share."""
    ratio = units / device.units
    levels = tuple(replace(level, bandwidth_gbps=level.bandwidth_gbps * ratio) for level in device.levels)
    return replace(
        device, units=units, levels=levels,
        peak_gflops=FrozenMap({k: v * ratio for k, v in device.peak_gflops.items()}),
        tensor_gflops=FrozenMap({k: v * ratio for k, v in device.tensor_gflops.items()}),
    )  # fmt: skip


def _by_itself(phases: Sequence[Phase], ranked: RankedPlan, device: DeviceSpec) -> float:
    """Return the seconds of kernels planned for a part of a device, launched on their own on all of it."""
    total = 0.0
    for phase_, estimate in zip(phases, ranked.estimate.programs, strict=True):
        busiest, rounds = busiest_unit(device, phase_.tasks, max(1, estimate.occupancy))
        total += max(rounds * phase_.alone_seconds, busiest * phase_.unit_seconds)
    return total


def rkernel(name: str, ranked: RankedPlan, device: DeviceSpec) -> RKernel:
    """Return one plan as an rKernel."""
    phases = tuple(
        phase(ranked.plan, program, estimate, device)
        for program, estimate in zip(ranked.plan.programs, ranked.estimate.programs, strict=True)
    )
    if device.kind == "cpu":
        return RKernel(name, phases, sum(ceil(p.tasks / device.units) * p.alone_seconds for p in phases), ranked.plan)
    launches = device.launch_overhead_us * 1e-6 * len(phases)
    return RKernel(name, phases, max(0.0, ranked.seconds - launches), ranked.plan)


def phase(plan: Plan, program: RProgram, estimate: ProgramEstimate, device: DeviceSpec) -> Phase:
    """Return one rProgram's blocks as rTasks.

    The model predicts when the busiest unit is done with all its blocks. If blocks wait for their own loads, that is
    the time of the rounds in which the unit runs them, and a block's share of the pipes is much less. Otherwise the
    pipes are the limit, and each block takes its share. On a CPU an rTask is a chunk of a parallel loop, alone on a
    thread.
    """
    if device.kind == "cpu":
        net = estimate.seconds - launch_seconds(device, estimate.blocks)
        chunk = (net if net > 0 else estimate.seconds) / ceil(estimate.blocks / device.units)
        return Phase(estimate.blocks, chunk, chunk)
    busiest, _ = busiest_unit(device, estimate.blocks, max(1, estimate.occupancy))
    resident = max(1, min(estimate.occupancy, busiest))
    net = max(0.0, estimate.seconds - device.launch_overhead_us * 1e-6)
    pipes = max([estimate.compute_seconds, *(level.seconds for level in estimate.levels)])
    share = net / busiest
    if estimate.bound == "latency":
        share = min(share, pipes * device.units / estimate.blocks)
    tiling = tiling_of(plan.expression, program)
    if tiling and tiling.tasks != estimate.blocks:
        tiling = None
    full, _ = occupancy(device, estimate.threads, estimate.registers, estimate.shared_bytes)
    return Phase(estimate.blocks, net / busiest * resident, share, estimate.threads, estimate.registers,
                 estimate.shared_bytes, tiling, max(1, full))


def tiling_of(expression: TensorExpression, program: RProgram) -> Tiling | None:
    """Return the elements that each block of an rProgram writes; None if the order of its blocks is unknown."""
    output, anchor = expression.stage(program.output), expression.stage(program.anchor)
    shape = output.shape
    if not shape:
        return None
    if program.recipe == "gpu.direct":
        return Tiling(shape, run=program.choice("items", 1) * program.choice("threads") * program.choice("vector", 1))
    if program.recipe == "gpu.reduce":
        return Tiling(shape, run=program.choice("rows", 1))
    if program.recipe == "gpu.tiled":
        whole = tuple(a.extent for a in output.spatial)
        if whole != tuple(a.extent for a in anchor.spatial):
            return None
        tile = tuple(min(program.tiles[0][a.name], a.extent) for a in anchor.spatial)
        if len(whole) == len(shape):
            return Tiling(shape, tile)
        return Tiling(shape, run=prod(tile)) if tile[1:] == whole[1:] else None
    return None


def roperator(
    name: str, expression: TensorExpression, device: DeviceSpec, inputs: Sequence[Edge] = (), top: int = 10
) -> ROperator:  # fmt: skip
    """Return an operator with the rKernels that Roller constructs for it.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.ir.operators import matmul
    >>> o = roperator("dense", matmul(m=1, n=512, k=512), load_device("v100"), top=2)
    >>> [k.name for k in o.kernels][:3], o.fastest.name
    (['plan 0', 'plan 1', '1/4 plan 0'], 'plan 0')
    """
    return ROperator(name, planned_rkernels(expression, device, top), tuple(inputs))
