"""Recipes: ways to map a loop nest onto a device, each with its candidates, their estimates, its lowering, its words.

A recipe stands in one file of this folder. ``RECIPES`` (``recipes/__init__.py``) lists all of them in the order in
which they are tried.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from math import prod
from typing import ClassVar

from ..device import DeviceSpec
from ..ir import TensorExpression
from ..micro_perf.cpu_rates import CpuRates
from ..micro_perf.estimate import ProgramEstimate
from ..micro_perf.geometry import Geometry
from ..roller.alignment import Rejection
from ..roller.candidates import Rejections, Tiles
from ..roller.features import NO_FEATURES, Features
from ..roller.partition import NestShape
from ..roller.rprogram import RProgram
from ..roller.rtile import RTile
from ..roller.steps import Step
from .kinds import Kind, kind_of

Pair = tuple[RProgram, ProgramEstimate]
Ranked = list[Pair]


@dataclass(frozen=True)
class Candidate:
    """One candidate of a nest, whose rProgram and estimate are made when they are asked for.

    Parameters
    ----------
    seconds : float
        Predicted time.
    kernel : hashable
        Key of its inner kernel (``Recipe.kernel``).
    make : callable
        Returns the rProgram and its estimate.
    """

    seconds: float
    kernel: Hashable
    make: Callable[[], Pair]

    @cached_property
    def pair(self) -> Pair:
        return self.make()


class Fit(Enum):
    """Answer of a recipe about a nest. Last resorts are tried only if no recipe that suits it finds a program."""

    NO = "no"
    YES = "yes"
    LAST_RESORT = "last resort"


@dataclass
class Report:
    """Rejected candidates of a construction, and how many were considered."""

    rejections: Rejections = field(default_factory=Rejections)
    considered: int = 0


@dataclass
class Context:
    """A nest to construct, the device, the padding allowed (eps), and the report of the construction.

    Parameters
    ----------
    geometry : Geometry
        Accesses of the nest.
    device : DeviceSpec
    nest : NestShape
    eps : float
        Share of padding that rule 4 allows.
    features : Features
        Abilities of the schedules beyond loops.
    report : Report
        Shared by contexts that are made of this one.
    slices : mapping of str to int
        Where the nest is one slice of several (`ir.slices`): its axes that number them, outermost first, and their
        trips.
    """

    geometry: Geometry
    device: DeviceSpec
    nest: NestShape
    eps: float = 0.0
    features: Features = NO_FEATURES
    report: Report = field(default_factory=Report)
    slices: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def kind(self) -> Kind:
        """Kind of the nest: it limits the choice of loops."""
        return kind_of(self.geometry, self.nest)

    @cached_property
    def rates(self) -> CpuRates:
        """Rates of a core (CPUs alone)."""
        return CpuRates.of(self.device, self.geometry)

    @property
    def considered(self) -> int:
        return self.report.considered

    @considered.setter
    def considered(self, number: int) -> None:
        self.report.considered = number

    @property
    def rejections(self) -> Rejections:
        return self.report.rejections

    def over(self, geometry: Geometry) -> Context:
        """Return the context with the same nest read in another way."""
        return replace(self, geometry=geometry)

    def reject(self, rejection: Rejection | None, candidate: str = "") -> bool:
        """Record a broken rule; return True if there was one."""
        if rejection is None:
            return False
        self.rejections.append(replace(rejection, candidate=candidate))
        return True

    def rtile(self, level: str, tile: Tiles, padding: Mapping[str, int] | None = None) -> RTile:
        """Return extents by axis position as an rTile."""
        return RTile(level, tuple(zip(self.geometry.axes, map(int, tile), strict=True)), tuple((padding or {}).items()))

    def program(
        self, recipe: str, tiles: tuple[RTile, ...], choices: tuple[tuple[str, int], ...], staged: tuple[str, ...] = ()
    ) -> RProgram:
        """Return an rProgram of this nest; of a slice, as one of all slices."""
        nest = self.nest
        choices = (*choices, *((f"slice:{axis}", trips) for axis, trips in self.slices.items()))
        return RProgram(recipe, nest.anchor, nest.output, tiles, nest.inlined, staged, choices)


class Recipe(ABC):
    """One way to map a nest onto a device.

    Attributes
    ----------
    name : str
        ``device.recipe``, as rPrograms have it.
    says : str
        A line for reports.
    staged : str
        Words for an rProgram's staged tensors, for recipes that do not copy tiles to shared memory.
    relaxes : bool
        True if its candidates depend on eps.
    on_cpu : bool
    covers : bool
        True if a tile that does not divide an axis stands over its edge; else it is a unit's share of the axis.
    """

    name: ClassVar[str]
    says: ClassVar[str]
    staged: ClassVar[str] = ""
    relaxes: ClassVar[bool] = False
    covers: ClassVar[bool] = True
    on_cpu: ClassVar[bool] = False

    @abstractmethod
    def applies(self, ctx: Context) -> Fit:
        """Return whether the recipe suits a nest."""

    def takes_slices(self, ctx: Context) -> bool:
        """Return whether a nest's parallel loop goes through its slices first, as their merged loop needs it."""
        return False

    @abstractmethod
    def construct(self, ctx: Context, top: int) -> Sequence[Candidate | Pair]:
        """Return candidates of a nest, best first, enough of them for `top` plans.

        A recipe with few candidates may make their rPrograms and estimates at once.
        """

    def candidates(self, ctx: Context, top: int) -> list[Candidate]:
        """Return what ``construct`` found as candidates."""
        expression, found = ctx.geometry.expression, self.construct(ctx, top)
        return [c if isinstance(c, Candidate) else self._made(expression, c) for c in found]

    def _made(self, expression: TensorExpression, pair: Pair) -> Candidate:
        return Candidate(pair[1].seconds, self.kernel(expression, pair[0]), lambda: pair)

    @abstractmethod
    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        """Return an rProgram as schedule steps."""

    def peak(self, expression: TensorExpression, program: RProgram, device: DeviceSpec) -> float | None:
        """Return the peak in GFLOP/s of the units that an rProgram computes on; None for the device's ordinary ones."""
        return None

    def accumulators(self, program: RProgram, geometry: Geometry, device: DeviceSpec) -> int:
        """Return the outputs that a thread keeps in registers."""
        tile = program.tile("register")
        return prod(tile[geometry.axes[i]] for i in geometry.spatial)

    def kernel(self, expression: TensorExpression, program: RProgram) -> Hashable:
        """Return a key that differs between inner kernels."""
        return self.name

    def lighter(self, program: RProgram) -> Iterator[tuple[str, RProgram]]:
        """Yield (name, rProgram) with the same tiles and fewer values for a compiler to keep, cheapest first."""
        yield from ()


class CpuRecipe(Recipe):
    """A recipe for CPUs: a register tile of vectors in a chunk of each core.

    Attributes
    ----------
    suits : mapping
        Kinds of nests that it suits, and how.
    """

    suits: ClassVar[Mapping[Kind, Fit]]
    covers: ClassVar[bool] = False
    on_cpu: ClassVar[bool] = True

    def applies(self, ctx: Context) -> Fit:
        return self.suits.get(ctx.kind, Fit.NO) if ctx.device.kind == "cpu" else Fit.NO

    def kernel(self, expression: TensorExpression, program: RProgram) -> Hashable:
        """Return the recipe and the length of a register tile's row."""
        tile = program.tile("register")
        axes = [a for a in expression.stage(program.anchor).spatial if a.extent > 1]
        return self.name, tile[axes[-1].name] if axes else 1

    def kernel_of(self, ctx: Context, tile: Tiles) -> Hashable:
        """Return the same for a register tile of which there is no rProgram yet."""
        last = ctx.geometry.vector_axis
        return self.name, 1 if last is None else int(tile[last])
