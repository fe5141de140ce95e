"""A record's schedule as what the micro-performance model is told of a kernel."""

from __future__ import annotations

import functools
from math import prod

from ..model.geometry import Geometry, Tile, in_memory
from ..model.kernel import DirectKernel, Kernel, ReduceKernel, StagedKernel
from .records import Recorded
from .state import LoopStage, State, Unreadable
from .workload import Workload

BLOCK, THREAD, VTHREAD = "blockIdx", "threadIdx", "vthread"
UNROLL = "auto_unroll_max_step"


def kernels_of(record: Recorded, workload: Workload) -> tuple[Kernel, ...]:
    """The kernels that a record's schedule compiles to, in the order in which they run.

    Raises
    ------
    Unreadable
        The steps cannot be followed, or the schedule is of a kind that has no description.
    """
    state = State.replay(workload.stages, record.steps)
    kernels: list[Kernel] = []
    for stage in state.stages:
        if stage.kind == "input" or stage.place:
            continue
        kernels.append(_kernel(state, stage, workload))
    if not kernels:
        raise Unreadable("no stage is left that computes")
    return tuple(kernels)


@functools.lru_cache(maxsize=256)
def _geometry(workload: Workload, stage: str, memory: bool) -> Geometry:
    expression = workload.expression
    inlined = tuple(s.name for s in expression.stages if s.name == "pad")
    geometry = Geometry.of(expression, stage, inlined)
    return in_memory(geometry, inlined) if memory else geometry


def _bound(stage: LoopStage, binding: str) -> int:
    return prod(loop.extent for loop in stage.loops if loop.binding.startswith(binding))


def _kernel(state: State, stage: LoopStage, workload: Workload) -> Kernel:
    if not any(loop.binding.startswith(THREAD) for loop in stage.loops):
        raise Unreadable(f"stage '{stage.name}' is bound to no GPU threads")
    if stage.kind == "write":
        return _staged(state, stage, workload)
    inside = state.inside(stage.name)
    if inside:
        raise Unreadable(f"stages {', '.join(s.name for s in inside)} within '{stage.name}': no known kind of kernel")
    geometry = _geometry(workload, stage.name, True)
    limit = stage.pragma.get(UNROLL)
    threads = _bound(stage, THREAD)
    lanes = prod(
        loop.extent for loop in stage.loops
        if loop.binding.startswith(THREAD) and loop.axes and min(loop.axes) >= stage.spatial
    )  # fmt: skip
    if lanes > 1:
        return ReduceKernel(geometry, lanes, threads // lanes, limit)
    outputs = prod(
        loop.extent for loop in stage.loops
        if loop.binding in ("", VTHREAD) and loop.axes and max(loop.axes) < stage.spatial
    )  # fmt: skip
    return DirectKernel(geometry, threads, outputs, 1, limit)


def _per_axis(stage: LoopStage, binding: str, axes: int) -> Tile:
    """Extents per axis of the loops that are bound so ('' for those that are not)."""
    tile = [1] * axes
    for loop in stage.loops:
        if (loop.binding.startswith(binding) if binding else not loop.binding) and loop.extent > 1:
            if not loop.parts:
                raise Unreadable(f"'{stage.name}' splits fused axes")
            for part in loop.parts:
                tile[part.axis] *= part.extent
    return tuple(tile)


def _staged(state: State, output: LoopStage, workload: Workload) -> StagedKernel:
    anchor = state.stage(output.source)
    if anchor.name != f"{workload.anchor}.local" or anchor.at is None or anchor.at[0] != output.name:
        raise Unreadable(f"'{anchor.name}' is not the anchor kept in registers")
    geometry = _geometry(workload, workload.anchor, False)
    axes = len(geometry.extents)
    copies = [s for s in state.stages if s.kind == "read" and s.at is not None and s.at[0] == anchor.name]
    if not copies:
        raise Unreadable(f"'{anchor.name}' stages none of its operands")
    vthreads = _per_axis(output, VTHREAD, axes)
    lanes = _per_axis(output, THREAD, axes)
    own = _per_axis(output, "", axes)
    place = max(s.at[1] for s in copies if s.at)
    loops: list[tuple[int, int]] = []
    step = [1] * axes
    for number, loop in enumerate(anchor.loops):
        part = loop.pure
        if part is None:
            raise Unreadable(f"'{anchor.name}' fuses loops")
        if part.axis >= anchor.spatial:
            if number > place:
                loops.append((part.axis, part.extent))
                step[part.axis] *= part.extent
        elif part.stride * part.extent <= own[part.axis]:
            loops.append((part.axis, part.extent))
    thread = tuple(v * o for v, o in zip(vthreads, own, strict=True))
    block = tuple(
        step[i] if i >= anchor.spatial else min(thread[i] * lanes[i], geometry.extents[i]) for i in range(axes)
    )
    vectors = {workload.operand_of(s.source): _bound(s, "vectorize") for s in copies}
    missing = [op.name for op in geometry.operands if op.name not in vectors]
    if missing:
        raise Unreadable(f"operand {', '.join(missing)} is not staged")
    return StagedKernel(
        geometry, block, thread, vthreads, tuple(loops), anchor.pragma.get(UNROLL, 0),
        tuple(vectors[op.name] for op in geometry.operands), (0,) * len(geometry.operands),
    )  # fmt: skip
