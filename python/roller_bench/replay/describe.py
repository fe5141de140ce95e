"""Describe a record's schedule as the kernels that the micro-performance model takes."""

from __future__ import annotations

import functools
from math import prod

from roller_tvm.micro_perf.geometry import Geometry, Tile, in_memory
from roller_tvm.micro_perf.kernel import DirectKernel, Kernel, ReduceKernel, StagedKernel

from .records import Recorded
from .state import LoopStage, State, Unreadable
from .workload import Workload

BLOCK, THREAD, VTHREAD = "blockIdx", "threadIdx", "vthread"
UNROLL = "auto_unroll_max_step"


def kernels_of(record: Recorded, workload: Workload) -> tuple[Kernel, ...]:
    """Return the kernels of a record's schedule, in the order in which they run.

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
        raise Unreadable("no computing stage is left")
    return tuple(kernels)


@functools.lru_cache(maxsize=256)
def _geometry(workload: Workload, stage: str, inlined: tuple[str, ...], output: str, memory: bool) -> Geometry:
    geometry = Geometry.of(workload.expression, stage, inlined, output)
    return in_memory(geometry, inlined) if memory else geometry


def _bound(stage: LoopStage, binding: str) -> int:
    return prod(loop.extent for loop in stage.loops if loop.binding.startswith(binding))


def _base(stage: LoopStage) -> str:
    """Return the workload's stage that a stage of the schedule computes."""
    return stage.name.removesuffix(f".{stage.scope}") if stage.scope else stage.name


def _kernel(state: State, root: LoopStage, workload: Workload) -> Kernel:
    """Return the kernel of a root stage and all stages inside its loops."""
    if not any(loop.binding.startswith(THREAD) for loop in root.loops):
        raise Unreadable(f"stage '{root.name}' is bound to no GPU threads")
    inside = [s for s in state.inside(root.name) if s.kind != "read"]
    reducing = [s for s in (root, *inside) if s.reduces]
    if len(reducing) > 1:
        told = ", ".join(s.name for s in inside)
        raise Unreadable(f"stages {told} within '{root.name}': several reductions in one kernel cannot be described")
    anchor = reducing[0] if reducing else root
    copies = [s for s in state.stages if s.kind == "read" and s.at is not None and s.at[0] == anchor.name]
    name, expression = _base(anchor), workload.expression
    if not expression.is_stage(name):
        raise Unreadable(f"'{name}' is no stage of the workload")
    stored = {_base(s) for s in state.stages if not s.place} - {name}
    inlined = tuple(s.name for s in expression.stages if s.name not in stored and s.name != name)
    geometry = _geometry(workload, name, inlined, root.name, not copies)
    if copies:
        return _staged(root, anchor, copies, geometry, workload)
    threads, limit = max(_bound(root, THREAD), _bound(anchor, THREAD)), anchor.pragma.get(UNROLL)
    lanes = prod(
        loop.extent for loop in anchor.loops
        if loop.binding.startswith(THREAD) and loop.axes and min(loop.axes) >= anchor.spatial
    )  # fmt: skip
    if lanes > 1:
        return ReduceKernel(geometry, lanes, threads // lanes, limit)
    outputs = prod(
        loop.extent for loop in root.loops
        if not loop.binding.startswith((BLOCK, THREAD)) and loop.axes and max(loop.axes) < root.spatial
    )  # fmt: skip
    return DirectKernel(geometry, threads, outputs, 1, limit)


def _per_axis(stage: LoopStage, binding: str, axes: int) -> Tile:
    """Return the extents per axis of the loops with a binding ('' for loops without one)."""
    tile = [1] * axes
    for loop in stage.loops:
        if (loop.binding.startswith(binding) if binding else not loop.binding) and loop.extent > 1:
            if not loop.parts:
                raise Unreadable(f"'{stage.name}' splits fused axes")
            for part in loop.parts:
                tile[part.axis] *= part.extent
    return tuple(tile)


def _staged(
    output: LoopStage, anchor: LoopStage, copies: list[LoopStage], geometry: Geometry, workload: Workload
) -> StagedKernel:
    """Return the kernel of blocks that copy the anchor's inputs step by step; the output's loops give the tiles."""
    if anchor is output or anchor.at is None or anchor.at[0] != output.name:
        raise Unreadable(f"'{anchor.name}' is not kept in registers until '{output.name}' stores it")
    same = tuple(a.extent for a in workload.expression.stage(output.name).spatial)
    if same != tuple(geometry.extents[i] for i in geometry.spatial):
        raise Unreadable(f"'{output.name}' has other axes than '{anchor.name}'")
    axes = len(geometry.extents)
    vthreads = _per_axis(output, VTHREAD, axes)
    lanes = _per_axis(output, THREAD, axes)
    own = _per_axis(output, "", axes)
    place = max(s.at[1] for s in copies if s.at)
    loops: list[tuple[int, int]] = []
    step = [1] * axes
    for number, loop in enumerate(anchor.loops):
        if loop.extent > 1 and not loop.parts:
            raise Unreadable(f"'{anchor.name}' splits fused axes")
        for part in loop.parts:
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
