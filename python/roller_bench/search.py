"""Search over Roller's own space of rTiles, guided by a learned cost model (the baseline of the comparison)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from roller_bench.learned import OBJECTIVES, Model, plan_features, train
from roller_tvm.device import DeviceSpec
from roller_tvm.errors import UnsupportedOperator, UsageError
from roller_tvm.ir import TensorExpression
from roller_tvm.micro_perf.cpu import tiled_times
from roller_tvm.micro_perf.cpu_rates import CpuRates
from roller_tvm.micro_perf.estimate import Estimate, ProgramEstimate
from roller_tvm.micro_perf.geometry import Geometry, Tile
from roller_tvm.planner.construct import Form, fitting, forms
from roller_tvm.planner.construction import RankedPlan
from roller_tvm.recipes.cpu_tiled import CpuTiled, Reading, readings_of, tiled_program
from roller_tvm.recipes.cpu_tiles import chunks_of, looped_axes, may_pack, orders_of, register_tiles
from roller_tvm.recipes.recipe import Context
from roller_tvm.roller.features import NO_FEATURES, Features
from roller_tvm.roller.partition import NestShape
from roller_tvm.roller.rprogram import Plan, RProgram, SplitReduction

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



#: Function that returns the time of each plan in seconds, infinity if the plan does not work.
Measure = Callable[[Sequence[RankedPlan]], Sequence[float]]


@dataclass(frozen=True)
class Annealing:
    """Settings of simulated annealing, as AutoTVM's (``autotvm.tuner.sa_model_optimizer``) but with fewer steps.

    Parameters
    ----------
    chains, steps : int
        Number of parallel chains, and steps of each.
    first, last : float
        First and last temperature, in units of the score.
    random : float
        Fraction of a batch taken at random.
    """

    chains: int = 64
    steps: int = 60
    first: float = 1.0
    last: float = 0.0
    random: float = 0.05


@dataclass(frozen=True)
class Tried:
    """A measured configuration; `seconds` is infinite if it did not work."""

    point: Point
    plan: RankedPlan
    seconds: float


@dataclass
class Online:
    """A search over a space.

    Parameters
    ----------
    space : RTileSpace
    batch : int
        Number of configurations measured between two trainings.
    objective : str
        'rank' or 'regression'.
    seed : int

    Examples
    --------
    >>> from roller_tvm.device import device_for_target
    >>> from roller_tvm.ir.operators import matmul
    >>> device = device_for_target("llvm -mcpu=skylake-avx512 -num-cores=2")
    >>> search = Online(RTileSpace(matmul(m=32, n=32, k=32), device), batch=4)
    >>> tried = list(search.run(8, lambda plans: [p.seconds for p in plans]))
    >>> len(tried)
    8
    """

    space: RTileSpace
    batch: int = 16
    objective: str = "rank"
    seed: int = 0
    annealing: Annealing = field(default_factory=Annealing)
    tried: list[Tried] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise UsageError(f"no objective {self.objective!r}", remedy=f"choose from {', '.join(OBJECTIVES)}")
        self._random = Random(self.seed)
        self._seen: set[Any] = set()
        self._rows: dict[Point, np.ndarray] = {}

    @property
    def best(self) -> Tried | None:
        """Fastest configuration that worked, or None if none has."""
        worked = [t for t in self.tried if math.isfinite(t.seconds)]
        return min(worked, key=lambda t: t.seconds) if worked else None

    def run(self, trials: int, measure: Measure) -> Iterator[Tried]:
        """Measure up to `trials` configurations; yield each once its batch is done."""
        while len(self.tried) < trials:
            chosen = self._propose(min(self.batch, trials - len(self.tried)))
            if not chosen:  # all there are were measured
                return
            plans = [self.space.plan(point) for point in chosen]
            for point, plan, seconds in zip(chosen, plans, measure(plans), strict=True):
                self.tried.append(Tried(point, plan, float(seconds)))
                yield self.tried[-1]

    def _propose(self, count: int) -> list[Point]:
        """Return the next batch of configurations, chosen by the model once there is one."""
        model = train([t.seconds for t in self.tried], np.array([self.row(t.point) for t in self.tried]),
                      self.objective) if self.tried else None  # fmt: skip
        chosen: list[Point] = []
        if model is not None:
            aside = min(count - 1, max(1, round(count * self.annealing.random)))
            for point in self._annealed(model):
                if len(chosen) == count - aside:
                    break
                self._take(point, chosen)
        for point in self.space.points(count * 8, self._random):
            if len(chosen) == count:
                break
            self._take(point, chosen)
        return chosen

    def _take(self, point: Point, chosen: list[Point]) -> None:
        """Add a configuration to `chosen` unless an earlier one gave the same plan."""
        digest = tuple(self.space.plan(point).plan.programs), point.form
        if digest not in self._seen:
            self._seen.add(digest)
            chosen.append(point)

    def row(self, point: Point) -> np.ndarray:
        """Return the features of a configuration."""
        if point not in self._rows:
            self._rows[point] = plan_features(self.space.plan(point), self.space.device, self.space.searched(point))
        return self._rows[point]

    def _annealed(self, model: Model) -> list[Point]:
        """Return the configurations that the chains visited, best score first; chains start at the best measured."""
        a, random = self.annealing, self._random
        worked = sorted((t for t in self.tried if math.isfinite(t.seconds)), key=lambda t: t.seconds)
        chains = [t.point for t in worked[: a.chains // 2]]
        chains += [self.space.random(random) for _ in range(a.chains - len(chains))]
        scores = model.scores(np.array([self.row(p) for p in chains]))
        found = dict(zip(chains, map(float, scores), strict=True))
        for step in range(a.steps):
            heat = a.first + (a.last - a.first) * step / a.steps
            beside = [self.space.beside(p, random) for p in chains]
            new = model.scores(np.array([self.row(p) for p in beside]))
            found.update(zip(beside, map(float, new), strict=True))
            for n, point in enumerate(beside):
                gain = float(new[n] - scores[n])
                if gain >= 0 or (heat > 0 and random.random() < math.exp(gain / heat)):
                    chains[n], scores[n] = point, new[n]
        return sorted(found, key=lambda p: -found[p])
