"""Families of a GPU: a tile is what one part of the grid computes, and the size decides how many parts there are.

The operator is planned for a large size. Its blocks' tile along an open axis is the tile of the family, so the kernel
is that of the large size with one row of blocks; smaller tiles serve smaller sizes. One element is always among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from ..device import DeviceSpec
from ..errors import UnsupportedOperator
from ..roller.features import NO_FEATURES, Features
from .construct import forms
from .construction import RankedPlan
from .family_values import FEW, LOOKED_AT, TRIED, Member, Operator, PlanFamily, longer_axes, rules_for
from .plan_cache import plan_cache

#: Size that stands for the large ones: work for all units of a card.
GRID_LARGE = 2048
#: Elements along the last open axis that are tried as a tile where no plan tells a tile along it.
FUSED_TILES = (64, 16, 4)
#: Choices of a program that say how large the operator is.
SIZES = ("blocks",)


def grid_families(
    operator: Operator, axes: Sequence[str], sliced: Sequence[bool], device: DeviceSpec,
    features: Features = NO_FEATURES, likely: Sequence[int] | None = None,
) -> Iterator[PlanFamily]:  # fmt: skip
    """Yield families of kernels with a grid of open extents, best first.

    Parameters
    ----------
    operator, axes, sliced, device, features
        See `family.plan_families`.
    likely : sequence of int, optional
        Size of each axis that the largest tiles are planned for.

    Raises
    ------
    UnsupportedOperator
        A reduction runs along an open axis.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.ir.operators import matmul
    >>> family = next(grid_families(lambda e: matmul(m=e[0], n=768, k=768), ["m"], [True], load_device("a100")))
    >>> family.member([1]).extents, family.member([500]).extents[0] > 1
    ((1,), True)
    """
    if not all(sliced):
        what = "a reduction along an open axis is planned for CPUs"
        raise UnsupportedOperator(what, remedy="name the sizes (buckets)")
    planning = _Grid(operator, tuple(axes), device, features)
    known: set[tuple[int, ...]] = set()
    for large, tile in planning.tiles(list(likely or [GRID_LARGE] * len(axes))):
        if tile not in known and len(known) < TRIED and (family := planning.family(large, tile)) is not None:
            known.add(tile)
            yield family


class _Grid:
    def __init__(self, operator: Operator, axes: tuple[str, ...], device: DeviceSpec, features: Features) -> None:
        self.operator, self.axes, self.device, self.features = operator, axes, device, features
        #: Tensor in memory -> elements of fixed extents behind its last open one; 0 if it has none that is open.
        self.neighbours = self._neighbours()

    def _neighbours(self) -> dict[str, int]:
        few, more = (self.operator([size] * len(self.axes)) for size in (2, 3))
        found = {}
        for name in (*(t.name for t in few.inputs), few.output.name):
            shapes = few.tensors[name].shape, more.tensors[name].shape
            opened = [d for d, (a, b) in enumerate(zip(*shapes, strict=True)) if a != b]
            found[name] = prod(shapes[0][opened[-1] + 1 :]) if opened else 0
        return found

    def _aligned(self, ranked: RankedPlan) -> bool:
        """Return whether each vector is aligned at every size: its lanes divide the tensor's neighbours."""
        for program in ranked.plan.programs:
            for choice, lanes in program.choices:
                kind, _, name = choice.partition(":")
                if kind not in ("vector", "store"):
                    continue
                named = name or (program.output if kind == "store" else "")
                own = [self.neighbours.get(named, 0)] if named else self.neighbours.values()
                if any(n % lanes for n in own):
                    return False
        return True

    def _plans(self, extents: Sequence[int]) -> list[RankedPlan]:
        """Plans whose vectors are aligned at every size."""
        try:
            found = plan_cache().construct(self.operator(extents), self.device, LOOKED_AT, self.features).plans
        except UnsupportedOperator:
            return []
        return [p for p in found if self._aligned(p)]

    def tiles(self, likely: list[int]) -> Iterator[tuple[RankedPlan, tuple[int, ...]]]:
        """Yield plans for a large size, best first, each with its blocks' tile along the open axes."""
        for large in self._plans(likely):
            if (tile := self._tile(large, likely)) is not None:
                yield large, tile
                continue
            # Axes are fused: some elements of the last open one.
            for last in FUSED_TILES if len(large.plan.programs) == 1 else ():
                yield large, (*[1] * (len(self.axes) - 1), last)
            yield large, (1,) * len(self.axes)

    def _tile(self, large: RankedPlan, likely: list[int]) -> tuple[int, ...] | None:
        """The blocks' tile of a plan along the open axes; None if axes are fused."""
        program, *more_programs = large.plan.programs
        if more_programs or large.plan.split_reductions:
            return None
        extents = dict(program.tiles[0].extents)
        found = []
        for at in range(len(self.axes)):
            more = list(likely)
            more[at] += 1
            stages = [e.stage(program.anchor) for e in (self.operator(likely), self.operator(more))
                      if any(s.name == program.anchor for s in e.stages)]  # fmt: skip
            if len(stages) != 2:
                return None
            moved = longer_axes(*stages)
            if len(moved) != 1 or moved[0] not in extents:
                return None
            found.append(extents[moved[0]])
        return tuple(found)

    def family(self, large: RankedPlan, tile: tuple[int, ...]) -> PlanFamily | None:
        """Return the family of a tile and smaller ones; None without a kernel for single elements."""
        made = [tuple(min(e, most) for e in tile) for most in (max(tile, default=1), FEW * FEW, FEW, 1)]
        members = [m for extents in dict.fromkeys(made) if (m := self._member(large, extents)) is not None]
        if not members or any(e > 1 for e in members[-1].extents):
            return None
        sliced = (True,) * len(self.axes)
        return PlanFamily(self.axes, sliced, tuple(members), rules_for(sliced, members))

    def _member(self, large: RankedPlan, extents: tuple[int, ...]) -> Member | None:
        """A tile by the kernel of the large size if its blocks fit, else by the best kernel of the tile alone."""
        plans = self._plans(extents)
        if not plans:
            return None
        same = next((p for p in plans if _kernel(p) == _kernel(large)), None) or self._made_so(large, plans[0], extents)
        alone = next((p for p in plans if not p.plan.on_tensor_cores), plans[0])  # a few rows are no matrix
        many = prod(large.plan.expression.output.shape) / prod(self.operator(extents).output.shape)
        if same is None:
            return Member(extents, alone, max(0.0, alone.seconds - self.device.launch_overhead_us * 1e-6))
        return Member(extents, same, large.seconds / many)

    def _made_so(self, large: RankedPlan, known: RankedPlan, extents: tuple[int, ...]) -> RankedPlan | None:
        """The tile with the programs of the large size, which it was not found by: too few blocks for the device."""
        if self._tile(large, [GRID_LARGE] * len(extents)) != extents:
            return None
        for form in forms(self.operator(extents), self.device, self.features):
            axes = {stage.name: stage.extents.keys() for stage in form.expression.stages}
            if all(axes.get(p.anchor) == tile.shape.keys() for p in large.plan.programs for tile in p.tiles):
                return replace(known, plan=replace(large.plan, expression=form.expression))
        return None  # of so small a tile other axes are fused


def _kernel(ranked: RankedPlan) -> tuple[object, ...]:
    """Return the parts that the kernels of two sizes have in common."""
    return tuple(
        (p.recipe, p.tiles if p.copies_tiles else (), p.inlined, p.staged,
         tuple(choice for choice in p.choices if choice[0] not in SIZES))
        for p in ranked.plan.programs
    )  # fmt: skip
