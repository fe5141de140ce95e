"""rKernels from Roller's plans: their rTasks, and what each takes by the micro-performance model."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

from ..device import DeviceSpec
from ..expr import TensorExpression
from ..model.estimate import ProgramEstimate
from ..model.gpu import busiest_unit
from ..plan import construct
from ..plan.candidates import RankedPlan
from ..plan.program import Plan, RProgram
from .operators import Edge, Phase, RKernel, ROperator
from .tiling import Tiling


def rkernels(plans: Sequence[RankedPlan], device: DeviceSpec, most: int = 0) -> tuple[RKernel, ...]:
    """The rKernels of an operator's plans: 'plan 0' is the first of them.

    Parameters
    ----------
    plans : sequence of RankedPlan
    device : DeviceSpec
    most : int
        Keep so many: the fastest, then the most efficient. 0 keeps all.
    """
    found = [rkernel(f"plan {n}", ranked, device) for n, ranked in enumerate(plans)]
    if most and len(found) > most:
        fastest = min(found, key=lambda k: k.seconds)
        rest = sorted((k for k in found if k is not fastest), key=lambda k: (k.work, k.seconds))
        found = [fastest, *rest[: most - 1]]
    return tuple(found)


def rkernel(name: str, ranked: RankedPlan, device: DeviceSpec) -> RKernel:
    """One plan as an rKernel."""
    phases = tuple(
        phase(ranked.plan, program, estimate, device)
        for program, estimate in zip(ranked.plan.programs, ranked.estimate.programs, strict=True)
    )
    if device.kind == "cpu":
        return RKernel(name, phases, sum(ceil(p.tasks / device.units) * p.alone_seconds for p in phases), ranked.plan)
    launches = device.launch_overhead_us * 1e-6 * len(phases)
    return RKernel(name, phases, max(0.0, ranked.seconds - launches), ranked.plan)


def phase(plan: Plan, program: RProgram, estimate: ProgramEstimate, device: DeviceSpec) -> Phase:
    """One rProgram's blocks as rTasks.

    The model tells when the busiest unit is done with all its blocks. Where they wait for their own loads, that is
    the time of the rounds in which it runs them, and a block's share of the pipes is much less; elsewhere the pipes
    are the limit, and each block takes its share. On a CPU an rTask is a chunk of a parallel loop, on a thread alone.
    """
    if device.kind == "cpu":
        net = estimate.seconds - device.launch_overhead_us * 1e-6  # of a loop that is not parallel it may be no part
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
    return Phase(estimate.blocks, net / busiest * resident, share, estimate.threads, estimate.registers,
                 estimate.shared_bytes, tiling)


def tiling_of(expression: TensorExpression, program: RProgram) -> Tiling | None:
    """What each block of an rProgram writes, where the order of its blocks is known."""
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
    name: str, expression: TensorExpression, device: DeviceSpec, inputs: Sequence[Edge] = (), top: int = 10,
    most: int = 0,
) -> ROperator:  # fmt: skip
    """An operator with the rKernels that Roller constructs for it.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.expr.operators import matmul
    >>> o = roperator("dense", matmul(m=1, n=512, k=512), load_device("v100"), top=2)
    >>> len(o.kernels), o.fastest.name
    (2, 'plan 0')
    """
    return ROperator(name, rkernels(construct(expression, device, top).plans, device, most), tuple(inputs))
