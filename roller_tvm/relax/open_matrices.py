"""Products of an open number of rows on the matrix unit, from the size on where the model predicts a gain.

Below it the kernels of a family compute it (`open_schedule.py`). The weights are in the file twice, for either. Blocks
of the unit's kernel are whole; the last one may have fewer rows, which cost as much as a half or a whole one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from math import inf, log, prod
from typing import Any

from tvm import tirx

from ..codegen.kernel_cache import kept_answer
from ..codegen.matrix_kernel import LANES, OPERAND, MatrixKernel
from ..codegen.tensorir_packing import constant_parameters
from ..device import DeviceSpec
from ..errors import RollerError
from ..micro_perf.matrix_unit import MatrixTiles, matrix_tiles
from ..planner.family_values import TYPICAL
from ..tir.nodes import key, tensors_of
from ..tir.open_axes import number
from ..tir.open_choice import Instead
from ..tir.product_nests import ProductNest, product_nest
from .kept_schedules import KeptSchedule
from .marks import OPEN_MATRIX
from .open_schedule import Likely, OpenFunction
from .schedule import named_as
from .structures import Function

#: Sizes that stand for all: how many they are, and for how many each stands, where an element is one row. Of pictures,
#: each of many rows, there are fewer.
COUNT, STEP = 64, 8


@dataclass(frozen=True)
class OnUnit:
    """A kernel of the matrix unit.

    Parameters
    ----------
    first : int
        The least size that it serves.
    form : (int, bool)
        Of its blocks (`MatrixTiles.form`).
    """

    first: int
    form: tuple[int, bool]


@dataclass(frozen=True, eq=False)
class OpenProduct:
    """A function's product by a constant, of any number of rows.

    Parameters
    ----------
    nest : ProductNest
    weights : int
        Position of the constant among the parameters.
    device : DeviceSpec
    likely : tuple of (name, size)
        As of `OpenFunction`.
    """

    nest: ProductNest
    weights: int
    device: DeviceSpec
    likely: Likely = ()

    @property
    def inputs(self) -> int:
        """Parameters before the result: the place of the constant packed for the unit."""
        return [key(p) for p in tensors_of(self.nest.func)].index(key(self.nest.out))

    def units(self, gain: float) -> tuple[OnUnit, ...]:
        """Return the unit's kernels, each for its sizes and larger ones; none if it is at no size faster by `gain`."""
        found = kept_answer(lambda: self._units(gain), "open matrix", *self._words(), gain)
        return tuple(OnUnit(int(first), (int(chunk), bool(by_rows))) for first, chunk, by_rows in found)

    def tiles(self, size: int, form: tuple[int, bool] | None) -> MatrixTiles | None:
        """Return the blocks for a size; None if they do not fit."""
        nest = self.nest
        return matrix_tiles(size * self._each, nest.terms, nest.columns, self.device, nest.moved_bytes(size), form=form)

    def func(self, used: Sequence[OnUnit], target: str, units: int, emulated: bool) -> tuple[Any, dict[str, Any]]:
        """Return the function that is to compute the product, of a packed constant more, and words about it."""
        func, likely = self.nest.func, self.likely
        name = str((func.attrs or {}).get("global_symbol", "main"))
        kept = KeptSchedule.of(Function(func), self.device, target, "open matrix", likely, used, units, emulated)
        if (known := kept.read()) is not None:
            return known
        instead = self._instead(used, units, emulated)
        made, family = next(OpenFunction(func, self.device, name, likely=likely, merges=False).schedules(instead))
        typical = self.tiles(max(used[0].first, TYPICAL), used[0].form)
        told = [f"{family.axes[0]} from {one.first}: {self.tiles(self._sizes[-1], one.form)}" for one in reversed(used)]
        words = {
            "recipe": "cpu.matrix", "predicted_us": typical.seconds * 1e6 if typical else 0.0,
            "plan": "; ".join([*told, *str(family).splitlines()]),
        }  # fmt: skip
        made = named_as(made, func).with_attr(OPEN_MATRIX, True)
        kept.write(made, words)
        return made, words

    def _instead(self, used: Sequence[OnUnit], units: int, emulated: bool) -> Instead:
        rows, body, right = self.nest.rows, None, None
        for one in used:
            tiles = self.tiles(self._sizes[-1], one.form)
            assert tiles is not None
            if right is None:
                _, width, depth = tiles.blocks
                right = tirx.decl_buffer([width * depth * OPERAND], "uint16", "weights_of_unit")
            own = MatrixKernel(tiles, self.nest.left_at, right, self.nest.stored, units, emulated, rows=rows).body()
            body = own if body is None else tirx.IfThenElse(rows >= one.first * self._each, own, body)
        return Instead(rows >= used[0].first * self._each, body, right, self.inputs)

    def _units(self, gain: float) -> list[list[int]]:
        """Return first size and form of each kernel: those of the least mean time of all sizes, one or two."""
        made = {form: [self.tiles(size, form) for size in self._sizes] for form in self._forms()}
        try:
            opened = OpenFunction(self.nest.func, self.device, "main", likely=self.likely, merges=False)
            _, family = next(opened.schedules())
        except RollerError:
            return []
        vectors = [log(family.seconds([size])) for size in self._sizes]
        gains = {
            form: [-inf if own is None else vector - log(own.seconds * gain)
                   for own, vector in zip(tiles, vectors, strict=True)]
            for form, tiles in made.items()
        }  # fmt: skip
        last = COUNT
        alone = max(((sum(g[n:]), n, form) for form, g in gains.items() for n in range(last)), default=(0.0, 0, ()))
        if alone[0] <= 0:
            return []
        both = max(
            (sum(gains[f][n:m]) + sum(gains[g][m:]), n, f, m, g)
            for f, g in permutations(gains, 2) for n, m in combinations(range(last), 2)
        ) if len(gains) > 1 else alone  # fmt: skip
        chosen = both[1:] if both[0] > alone[0] else alone[1:]
        return [[1 + n * self._step, *map(int, form)] for n, form in zip(chosen[::2], chosen[1::2], strict=True)]

    def _forms(self) -> list[tuple[int, bool]]:
        """Return the forms that are best at some size."""
        found = (self.tiles(size, None) for size in self._sizes)
        return list(dict.fromkeys(tiles.form for tiles in found if tiles is not None))

    @property
    def _each(self) -> int:
        """Rows of one element of the open axis."""
        return prod(number(e) or 1 for n, (_, e) in enumerate(self.nest.spatial) if n not in self.nest.across)

    @property
    def _step(self) -> int:
        return STEP if self._each < STEP else 1

    @property
    def _sizes(self) -> range:
        return range(max(1, self._step // 2), 1 + COUNT * self._step, self._step)

    def _words(self) -> tuple[Any, ...]:
        return Function(self.nest.func).text, self.device.name, self.device.digest(), self.likely


def open_product(func: Any, device: DeviceSpec, likely: Likely = ()) -> OpenProduct | None:
    """Return the product of a function with an open number of rows, and a constant; None if it is another function."""
    nest = product_nest(func)
    if nest is None or not nest.is_open or nest.slides or not nest.fills(LANES):
        return None
    position = next(n for n, p in enumerate(tensors_of(func)) if key(p) == key(nest.right))
    return OpenProduct(nest, position, device, likely) if position in constant_parameters(func) else None


__all__ = ["OpenProduct", "open_product"]
