"""Roller's space of construction as a space to search: every rTile configuration that its rules allow.

The rules, the rPrograms and the lowering are the planner's own; only the choice among them is left to the search.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import numpy as np

from ..device import DeviceSpec
from ..errors import UnsupportedOperator
from ..ir import TensorExpression
from ..micro_perf.cpu import tiled_times
from ..micro_perf.cpu_rates import CpuRates
from ..micro_perf.estimate import Estimate, ProgramEstimate
from ..micro_perf.geometry import Geometry, Tile
from ..planner.construct import Form, fitting, forms
from ..planner.construction import RankedPlan
from ..recipes.cpu_tiled import CpuTiled, Reading, readings_of, tiled_program
from ..recipes.cpu_tiles import chunks_of, looped_axes, may_pack, orders_of, register_tiles
from ..recipes.recipe import Context
from ..roller.features import NO_FEATURES, Features
from ..roller.partition import NestShape
from ..roller.rprogram import Plan, RProgram, SplitReduction

#: Limit of candidates for recipes that have few; large enough to take all.
EVERY = 10_000


@dataclass(frozen=True)
class Point:
    """One configuration of a nest.

    `form` is a position in ``RTileSpace.forms``. In a `TiledForm`, the other numbers are positions in its lists of
    register tiles, chunks, orders and packings; in a `ListedForm`, `tile` is the position in its list.
    """

    form: int
    tile: int
    chunk: int = 0
    order: int = 0
    packing: int = 0


@dataclass
class TiledForm:
    """Configurations of the recipe cpu.tiled for one nest."""

    search: Context
    tiles: list[Tile]
    packings: list[frozenset[str]]
    chunks: dict[int, list[Tile]] = field(default_factory=dict)

    def chunks_of(self, tile: int) -> list[Tile]:
        """Return the chunks of a register tile, given by position."""
        if tile not in self.chunks:
            own = np.array(self.tiles[tile])[:, None]
            found = chunks_of(self.search.geometry, own, self.search.device.units, None)[1]
            self.chunks[tile] = [tuple(chunk) for chunk in found.T.tolist()]
        return self.chunks[tile]

    def random(self, form: int, random: Random) -> Point | None:
        """Return a random configuration, or None if the tile drawn has no legal one."""
        tile = random.randrange(len(self.tiles))
        if not (chunks := self.chunks_of(tile)):
            return None
        chunk = random.randrange(len(chunks))
        return self._point(form, tile, chunk, random.randrange(EVERY), random.randrange(len(self.packings)))

    def _point(self, form: int, tile: int, chunk: int, order: int, packing: int) -> Point | None:
        g, extents, packed = self.search.geometry, self.chunks_of(tile)[chunk], self.packings[packing]
        looped = looped_axes(g, extents, self.tiles[tile])
        orders = orders_of(g, looped, packed)
        if not orders or not may_pack(g, extents, self.tiles[tile], packed):
            if self.packings[0]:
                return None
            packing, orders = 0, orders_of(g, looped)
        return Point(form, tile, chunk, order % len(orders), packing)

    def beside(self, at: Point, random: Random) -> Point | None:
        """Return a configuration that differs in one choice, or None if it is not legal."""
        choice = random.randrange(4)
        if choice == 0:  # another register tile, the chunk as near as it can be
            tile = random.randrange(len(self.tiles))
            if not (chunks := self.chunks_of(tile)):
                return None
            before = self.chunks_of(at.tile)[at.chunk]
            apart = [sum(abs(a - b) for a, b in zip(chunk, before, strict=True)) for chunk in chunks]
            return self._point(at.form, tile, apart.index(min(apart)), at.order, at.packing)
        if choice == 1:
            return self._point(at.form, at.tile, random.randrange(len(self.chunks_of(at.tile))), at.order, at.packing)
        if choice == 2:
            return self._point(at.form, at.tile, at.chunk, at.order + 1, at.packing)
        return self._point(at.form, at.tile, at.chunk, at.order, random.randrange(len(self.packings)))

    def program(self, at: Point) -> tuple[RProgram, ProgramEstimate]:
        """Return the rProgram of a configuration and the model's estimate of it."""
        s, tile, chunk = self.search, self.tiles[at.tile], self.chunks_of(at.tile)[at.chunk]
        packed = self.packings[at.packing]
        order = orders_of(s.geometry, looped_axes(s.geometry, chunk, tile), packed)[at.order]
        times = tiled_times(s.geometry, s.device, chunk, tile, order, dict.fromkeys(packed, True))
        return tiled_program(s, chunk, tile, order, packed), times.row(0)


@dataclass
class ListedForm:
    """Configurations of recipes that have few: a list."""

    programs: list[tuple[RProgram, ProgramEstimate]]

    def random(self, form: int, random: Random) -> Point | None:
        """Return a random configuration."""
        return Point(form, random.randrange(len(self.programs)))

    def beside(self, at: Point, random: Random) -> Point | None:
        """Return a random configuration: a list has no neighbours."""
        return self.random(at.form, random)

    def program(self, at: Point) -> tuple[RProgram, ProgramEstimate]:
        """Return the rProgram of a configuration and the model's estimate of it."""
        return self.programs[at.tile]


@dataclass(frozen=True)
class _Around:
    """The other nests of a plan; the searched nest has None in its place."""

    expression: TensorExpression
    splits: tuple[SplitReduction, ...]
    programs: tuple[tuple[RProgram, ProgramEstimate] | None, ...]


def _tiled_form(reading: Reading) -> TiledForm:
    """Return all choices of recipe cpu.tiled for one reading of a nest."""
    rates = CpuRates.of(reading.ctx.device, reading.ctx.geometry)
    tiles = register_tiles(reading.ctx, rates, None, over=True) if reading.tiles is None else reading.tiles
    return TiledForm(reading.ctx, [tuple(tile) for tile in tiles.T.tolist()], reading.packings)


class RTileSpace:
    """All configurations of an operator's heaviest nest, in each of its forms; the other nests are constructed.

    Parameters
    ----------
    expression : TensorExpression
    device : DeviceSpec
        A CPU.
    features : Features
        Capabilities of the schedules (see ``construct``).

    Examples
    --------
    >>> from roller_tvm.ir.operators import matmul
    >>> from roller_tvm.device import device_for_target
    >>> space = RTileSpace(matmul(m=64, n=64, k=64), device_for_target("llvm -mcpu=skylake-avx512 -num-cores=2"))
    >>> space.plan(space.random(Random(0))).plan.programs[0].recipe.startswith("cpu.")
    True
    """

    def __init__(self, expression: TensorExpression, device: DeviceSpec, features: Features = NO_FEATURES) -> None:
        if device.kind != "cpu":
            raise UnsupportedOperator("only the space of CPUs can be searched", device.name, "give a CPU's target")
        self.device, self.features = device, features
        self.forms: list[TiledForm | ListedForm] = []
        self._around: list[_Around] = []
        for form in forms(expression, device, features):
            for nests in form.cuts:
                self._add(form, nests)
        if not self.forms:
            raise UnsupportedOperator("no legal plan", f"{expression.name} on {device.name}")

    def _add(self, form: Form, nests: tuple[NestShape, ...]) -> None:
        best: list[tuple[RProgram, ProgramEstimate]] = []
        own: list[list[TiledForm | ListedForm]] = []
        for nest in nests:
            geometry = Geometry.of(form.expression, nest.anchor, nest.inlined, nest.output)
            ctx = Context(geometry, self.device, nest, 0.0, self.features)
            found: list[tuple[RProgram, ProgramEstimate]] = []
            choices: list[TiledForm | ListedForm] = []
            for recipe in (r for recipes in fitting(ctx) if not found for r in recipes):
                if isinstance(recipe, CpuTiled):
                    for reading in readings_of(ctx):
                        if here := [c.pair for c in recipe.of_reading(reading, 1)]:
                            found += here
                            choices.append(_tiled_form(reading))
                elif here := [c.pair for c in recipe.candidates(ctx, EVERY)]:
                    found += here
                    choices.append(ListedForm(here))
            if not found:
                return
            best.append(min(found, key=lambda c: c[1].seconds))
            own.append(choices)
        heaviest = max(range(len(best)), key=lambda n: best[n][1].seconds)
        chosen = tuple(None if n == heaviest else b for n, b in enumerate(best))
        around = _Around(form.expression, form.splits, chosen)
        for choice in own[heaviest]:
            self.forms.append(choice)
            self._around.append(around)

    def random(self, random: Random) -> Point:
        """Return a random configuration: first a form, weighted by its size, then a configuration of it."""
        weights = [len(f.tiles) if isinstance(f, TiledForm) else len(f.programs) for f in self.forms]
        while True:
            form = random.choices(range(len(self.forms)), weights)[0]
            if (point := self.forms[form].random(form, random)) is not None:
                return point

    def beside(self, at: Point, random: Random) -> Point:
        """Return a configuration that differs in one choice; one time in eight, one of any form."""
        if len(self.forms) > 1 and random.random() < 1 / 8:
            return self.random(random)
        return self.forms[at.form].beside(at, random) or at

    def plan(self, at: Point) -> RankedPlan:
        """Return the plan of a configuration, with its estimate."""
        around, own = self._around[at.form], self.forms[at.form].program(at)
        chosen = [pair or own for pair in around.programs]
        plan = Plan(around.expression, self.device.name, tuple(p for p, _ in chosen), around.splits)
        return RankedPlan(plan, Estimate(tuple(e for _, e in chosen)))

    def searched(self, at: Point) -> int:
        """Return the position of the searched nest in a configuration's plan."""
        return self._around[at.form].programs.index(None)

    def size(self) -> int:
        """Return the number of configurations, not counting loop orders, and packings at their most."""
        total = 0
        for form in self.forms:
            if isinstance(form, ListedForm):
                total += len(form.programs)
            else:
                total += sum(len(form.chunks_of(n)) for n in range(len(form.tiles))) * len(form.packings)
        return total

    def points(self, count: int, random: Random) -> Iterator[Point]:
        """Yield up to `count` distinct random configurations."""
        seen: set[Point] = set()
        for _ in range(count * 20):
            if len(seen) == count:
                return
            point = self.random(random)
            if point not in seen:
                seen.add(point)
                yield point
