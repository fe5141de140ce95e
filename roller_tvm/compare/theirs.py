"""Apply Roller's model to another tuner's tiles: are they in its space, and how long would they take?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from roller_tvm.baseline.space import ListedForm, RTileSpace, TiledForm
from roller_tvm.compare.tiles import extents_told
from roller_tvm.device import DeviceSpec
from roller_tvm.errors import RollerError
from roller_tvm.ir import TensorExpression
from roller_tvm.micro_perf.cpu import tiled_times
from roller_tvm.recipes.cpu_tiles import looped_axes, may_pack, orders_of
from roller_tvm.replay.state import LoopStage
from roller_tvm.roller.features import NO_FEATURES, Features

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
