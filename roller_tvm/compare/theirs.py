"""What Roller's model thinks of another tuner's tiles: whether they are in its space, and how long they would take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from roller_tvm.baseline.space import RTileSpace, TiledForm
from roller_tvm.device import DeviceSpec
from roller_tvm.errors import RollerError
from roller_tvm.expr import TensorExpression
from roller_tvm.model.cpu import CpuRates, tiled_estimate
from roller_tvm.plan.cpu import orders_of, packings_of
from roller_tvm.replay.state import LoopStage

#: Of a register tile.
IN_SPACE, NOT_IN_SPACE = "which is in Roller's space", "which is not in Roller's space"


@dataclass(frozen=True)
class TheirTiles:
    """Tiles of the nest that computes most: what a core has of each axis, and what stands inside the last reduction.

    Parameters
    ----------
    core, inner : mapping
        Axis -> extent.
    """

    core: Mapping[str, int]
    inner: Mapping[str, int]


@dataclass(frozen=True)
class Thought:
    """What the model says of somebody's tiles.

    Parameters
    ----------
    seconds : float
        Of the kernel, the loops around in the best order.
    tiles : str
        As Roller's plans are told.
    searched : bool
        Whether Roller has that register tile in its space.
    """

    seconds: float
    tiles: str
    searched: bool

    def __str__(self) -> str:
        return f"{self.tiles}, {IN_SPACE if self.searched else NOT_IN_SPACE}"


def tiles_of(stages: Sequence[LoopStage], axes: Mapping[str, Sequence[str]]) -> TheirTiles | None:
    """The tiles of a schedule for a CPU; None where they cannot be told.

    Parameters
    ----------
    stages : sequence of LoopStage
        Of the schedule.
    axes : mapping
        Stage -> names of its axes, those that are reduced last.
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


def thought_of(expression: TensorExpression, device: DeviceSpec, tiles: TheirTiles) -> Thought | None:
    """What Roller's model says of these tiles; None where its heaviest nest has other axes, or none is tiled.

    Examples
    --------
    >>> from roller_tvm.device import device_for_target
    >>> from roller_tvm.expr.operators import matmul
    >>> device = device_for_target("llvm -mcpu=skylake-avx512 -num-cores=2")
    >>> theirs = TheirTiles({"m": 32, "n": 64}, {"m": 4, "n": 32, "k": 1})
    >>> thought_of(matmul(m=64, n=64, k=64), device, theirs).tiles
    'l2(m=32 n=64 k=64) register(m=4 n=32)'
    """
    if device.kind != "cpu":
        return None
    try:
        space = RTileSpace(expression, device)
    except RollerError:
        return None
    found = []
    for form in space.forms:
        if not isinstance(form, TiledForm):
            continue
        g = form.search.geometry
        names = [axis.name for axis in g.stage.axes]
        if {n for n, e in (*tiles.inner.items(), *tiles.core.items()) if e > 1} - set(names):
            continue
        if set(names) - set(tiles.inner):  # a reduction in parts: theirs is not
            continue
        tile = tuple(1 if n in g.reduce else min(tiles.inner.get(a, 1), g.extents[n]) for n, a in enumerate(names))
        chunk = tuple(
            g.extents[n] if n in g.reduce else max(tile[n], min(tiles.core.get(a, 1), g.extents[n]))
            for n, a in enumerate(names)
        )
        packings = packings_of(g, CpuRates.of(device, g))
        seconds = min(
            tiled_estimate(g, device, chunk, tile, order, packed).seconds
            for packed in packings if not packed or g.stage.is_box(chunk)
            for order in orders_of(g, chunk, tile, packed)
        )  # fmt: skip
        told = [f"{word}({' '.join(f'{a}={e}' for a, e in zip(names, extents, strict=True) if e > 1) or '1'})"
                for word, extents in (("l2", chunk), ("register", tile))]  # fmt: skip
        found.append(Thought(seconds, " ".join(told), tile in form.tiles))
    return min(found, key=lambda t: t.seconds, default=None)
