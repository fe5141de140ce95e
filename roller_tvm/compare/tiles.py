"""Schedules as tiles, so that a winner can be read beside another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from roller_tvm.replay.records import parse_line
from roller_tvm.replay.state import Loop, LoopStage, StageInfo, State, Unreadable
from roller_tvm.roller.rprogram import Plan


def plan_tiles(plan: Plan) -> str:
    """Return a plan in one line: recipe and tiles of each nest, without axes of one iteration.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.ir.operators import matmul
    >>> from roller_tvm.planner import construct
    >>> best = construct(matmul(m=64, n=64, k=64), load_device("a100"), top=1).best
    >>> plan_tiles(best.plan).startswith("gpu.tiled shared(")
    True
    """
    parts = []
    for program in plan.programs:
        tiles = [f"{t.level}({extents_told(dict(t.extents))})" for t in program.tiles]
        staged = [f"staged({' '.join(program.staged)})"] if program.staged else []
        choices = [f"{name}={value}" for name, value in program.choices]
        parts.append(" ".join([program.recipe, *tiles, *staged, *choices]))
    return "; ".join([*map(str, plan.split_reductions), *parts])


def record_tiles(stages: Sequence[StageInfo], axes: Mapping[str, Sequence[str]], line: str) -> str:
    """Return an Ansor record as tiles: extents per core or block, and inside the last reduction loop.

    Parameters
    ----------
    stages : sequence of StageInfo
        Stages of the workload, as Ansor numbers them.
    axes : mapping
        Stage -> names of its axes, reduction axes last.
    line : str
        Record as one line of JSON.

    Returns
    -------
    str
        One nest after the other; '' if the steps cannot be followed.

    Examples
    --------
    >>> stages = [StageInfo("A", is_input=True), StageInfo("B", is_input=True), StageInfo("C", (64, 64), (32,))]
    >>> steps = '["SP", 2, 0, 64, [16, 4], 1], ["SP", 2, 3, 64, [16], 1], ["RE", 2, [0, 1, 3, 5, 2, 4]]'
    >>> steps += ', ["AN", 2, 0, 3], ["AN", 2, 5, 2]'
    >>> line = '{"i": [["[\\\\"key\\\\"]", "llvm"], [[], [' + steps + ']]], "r": [[1.0], 0, 1, 1], "v": "v0.6"}'
    >>> record_tiles(stages, {"C": "ijk"}, line)
    'C: parallel(1) core(i=64 j=64 k=32) inner(i=4 j=16) vector(j=16) i=1x16x4 j=4x16 k=32'
    """
    nests = record_nests(stages, line)
    names = [list(axes.get(stage.name.split(".")[0], ())) for stage in nests]
    return "; ".join(text for text in map(nest_tiles, nests, names) if text)


def record_nests(stages: Sequence[StageInfo], line: str) -> list[LoopStage]:
    """Return the stages after all steps of an Ansor record; [] if they cannot be followed."""
    try:
        state = State.replay(stages, parse_line(1, line).steps)
    except (Unreadable, ValueError):
        return []
    return [s for s in state.stages if s.kind in ("compute", "write") and s.place != "inline"]


def nest_tiles(stage: LoopStage, names: Sequence[str]) -> str:
    """Return one stage's loops as tiles, with axes by name; '' if they cannot be derived."""
    if not names or any(not loop.parts for loop in stage.loops if loop.extent > 1):
        return ""
    outer = [lp for lp in stage.loops if lp.binding == "parallel" or lp.binding.startswith("blockIdx")]
    reduced = [n for n, lp in enumerate(stage.loops) if any(p.axis >= stage.spatial for p in lp.parts)]
    rest = [lp for lp in stage.loops if lp not in outer]
    told = []
    if outer:
        one, each = ("parallel", "core") if outer[0].binding == "parallel" else ("blocks", "block")
        told += [f"{one}({_tile(outer, names)})", f"{each}({_tile(rest, names)})"]
    threads = [lp for lp in stage.loops if lp.binding.startswith("threadIdx")]
    if threads:
        told.append(f"threads({_tile(threads, names)})")
    if reduced and (inner := stage.loops[reduced[-1] + 1 :]):
        told.append(f"inner({_tile(inner, names)})")
    if vectors := [lp for lp in stage.loops if lp.binding == "vectorize"]:
        told.append(f"vector({_tile(vectors, names)})")
    told += _factors(stage.loops, names)
    if stage.at is not None:
        told.append(f"in {stage.at[0]}")
    if steps := stage.pragma.get("auto_unroll_max_step"):
        told.append(f"unrolled up to {steps}")
    return f"{stage.name}: {' '.join(told)}"


def _tile(loops: Sequence[Loop], names: Sequence[str]) -> str:
    """Return the combined extents of some loops, by axis."""
    extents = {name: 1 for name in names}
    for loop in loops:
        for part in loop.parts:
            extents[names[part.axis]] *= part.extent
    return extents_told(extents)


def extents_told(extents: Mapping[str, int]) -> str:
    """Return the axes with more than one iteration as text; '1' if there are none."""
    return " ".join(f"{axis}={e}" for axis, e in extents.items() if e > 1) or "1"


def _factors(loops: Sequence[Loop], names: Sequence[str]) -> list[str]:
    """Return the split factors of each axis, from outside to inside."""
    found = []
    for axis, name in enumerate(names):
        parts = sorted((p for lp in loops for p in lp.parts if p.axis == axis), key=lambda p: -p.stride)
        if prod(p.extent for p in parts) > 1:
            found.append(f"{name}={'x'.join(str(p.extent) for p in parts)}")
    return found
