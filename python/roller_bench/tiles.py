"""Schedules as tiles, so that a winner can be read beside another, and Roller's model on another tuner's tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from roller_bench.replay.records import parse_line
from roller_bench.replay.state import Loop, LoopStage, StageInfo, State, Unreadable
from roller_bench.search import ListedForm, RTileSpace, TiledForm
from roller_tvm.device import DeviceSpec
from roller_tvm.errors import RollerError
from roller_tvm.ir import TensorExpression
from roller_tvm.micro_perf.cpu import tiled_times
from roller_tvm.recipes.cpu_tiles import looped_axes, may_pack, orders_of
from roller_tvm.roller.features import NO_FEATURES, Features
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


#: Remarks on a register tile.
IN_SPACE, NOT_IN_SPACE = "which is in Roller's space", "which is not in Roller's space"


@dataclass(frozen=True)
class TheirTiles:
    """Tiles of the nest with the most work: extents of each axis per core, and inside the last reduction loop.

    Parameters
    ----------
    core, inner : mapping
        Axis -> extent.
    """

    core: Mapping[str, int]
    inner: Mapping[str, int]


@dataclass(frozen=True)
class Thought:
    """The model's answer for another tuner's tiles.

    Parameters
    ----------
    seconds : float
        Predicted time of the kernel in seconds, with the best order of the outer loops.
    tiles : str
        Tiles as text, in the format of Roller's plans.
    searched : bool
        True if that register tile is in Roller's space.
    """

    seconds: float
    tiles: str
    searched: bool

    def __str__(self) -> str:
        return f"{self.tiles}, {IN_SPACE if self.searched else NOT_IN_SPACE}"


def tiles_of(stages: Sequence[LoopStage], axes: Mapping[str, Sequence[str]]) -> TheirTiles | None:
    """Return the tiles of a schedule for a CPU; None if they cannot be derived from its loops.

    Parameters
    ----------
    stages : sequence of LoopStage
        Stages of the schedule.
    axes : mapping
        Stage -> names of its axes, reduction axes last.
    """
    reducing = [s for s in stages if any(p.axis >= s.spatial for lp in s.loops for p in lp.parts)]
    if not reducing:
        return None
    stage = max(reducing, key=lambda s: prod(lp.extent for lp in s.loops))
    names = list(axes.get(stage.name.split(".")[0], ()))
    if not names or any(not lp.parts for lp in stage.loops if lp.extent > 1):
        return None
    last = max(n for n, lp in enumerate(stage.loops) if any(p.axis >= stage.spatial for p in lp.parts))
    inner = dict.fromkeys(names, 1)
    for loop in stage.loops[last + 1 :]:
        for part in loop.parts:
            inner[names[part.axis]] *= part.extent
    # A nest inside another has what a core has from that one: the same axes, whatever they are called there.
    root = stage if stage.at is None else next((s for s in stages if s.name == stage.at[0]), stage)
    if root.spatial != stage.spatial:
        return None
    core = dict.fromkeys(names[: stage.spatial], 1)
    for loop in root.loops:
        for part in loop.parts if loop.binding != "parallel" else ():
            if part.axis < root.spatial:
                core[names[part.axis]] *= part.extent
    return TheirTiles(core, inner)


def thought_of(
    expression: TensorExpression, device: DeviceSpec, tiles: TheirTiles, features: Features = NO_FEATURES
) -> Thought | None:
    """Return the model's answer for tiles; None if Roller's heaviest nest has other axes or no recipe has such tiles.

    Parameters
    ----------
    expression : TensorExpression
        Expression with constant operands marked if the other tuner changes their layout.
    features : Features
        Capabilities of Roller's schedules on this line.

    Examples
    --------
    >>> from roller_tvm.device import device_for_target
    >>> from roller_tvm.ir.operators import matmul
    >>> device = device_for_target("llvm -mcpu=skylake-avx512 -num-cores=2")
    >>> theirs = TheirTiles({"m": 32, "n": 64}, {"m": 4, "n": 32, "k": 1})
    >>> thought_of(matmul(m=64, n=64, k=64), device, theirs).tiles
    'l2(m=32 n=64 k=64) register(m=4 n=32)'
    """
    if device.kind != "cpu":
        return None
    try:
        space = RTileSpace(expression, device, features)
    except RollerError:
        return None
    thoughts = [_tiled(f, tiles) if isinstance(f, TiledForm) else _listed(f, tiles) for f in space.forms]
    return min(filter(None, thoughts), key=lambda t: t.seconds, default=None)


def _tiled(form: TiledForm, tiles: TheirTiles) -> Thought | None:
    """Return the answer of a recipe that chooses register tiles and chunks separately, or None."""
    g, device = form.search.geometry, form.search.device
    names = [axis.name for axis in g.stage.axes]
    if {n for n, e in (*tiles.inner.items(), *tiles.core.items()) if e > 1} - set(names):
        return None
    if set(names) - set(tiles.inner):  # a reduction in parts: theirs is not
        return None
    tile = tuple(1 if n in g.reduce else min(tiles.inner.get(a, 1), g.extents[n]) for n, a in enumerate(names))
    chunk = tuple(
        g.extents[n] if n in g.reduce else max(tile[n], min(tiles.core.get(a, 1), g.extents[n]))
        for n, a in enumerate(names)
    )
    seconds = [
        tiled_times(g, device, chunk, tile, order, dict.fromkeys(packed, True)).row(0).seconds
        for packed in form.packings if not packed or may_pack(g, chunk, tile, packed)
        for order in orders_of(g, looped_axes(g, chunk, tile), packed)
    ]  # fmt: skip
    if not seconds:
        return None
    told = [f"{word}({extents_told(dict(zip(names, extents, strict=True)))})"
            for word, extents in (("l2", chunk), ("register", tile))]  # fmt: skip
    return Thought(min(seconds), " ".join(told), tile in form.tiles)


def _listed(form: ListedForm, tiles: TheirTiles) -> Thought | None:
    """Return the answer of a recipe with few plans: the plan with that register tile and the nearest chunk, or None."""
    inner = {axis: e for axis, e in tiles.inner.items() if e > 1}
    found = []
    for program, estimate in form.programs:
        of = {t.level: dict(t.extents) for t in program.tiles}
        register, chunk = of.get("register", {}), of.get("l2", {})
        if chunk and {axis: e for axis, e in register.items() if e > 1} == inner:
            apart = sum(abs(chunk.get(axis, 1) - e) for axis, e in tiles.core.items())
            found.append((apart, estimate.seconds, chunk, register))
    if not found:
        return None
    _, seconds, chunk, register = min(found, key=lambda f: f[:2])
    return Thought(seconds, f"l2({extents_told(chunk)}) register({extents_told(register)})", True)
