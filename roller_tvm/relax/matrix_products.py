"""MatrixProducts: products of float32 by constants on the CPU's matrix unit, where the model predicts a gain."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tvm import relax, tirx

from ..codegen.kernel_cache import kernel_cache
from ..codegen.matrix_kernel import LANES, OPERAND, MatrixKernel, is_splittable, packed_weights
from ..codegen.tensorir_packing import constant_parameters
from ..device import DeviceSpec, parse_target
from ..device.matrix_unit import names_matrix_unit
from ..errors import UnsupportedOperator
from ..forks import shared
from ..micro_perf.cpu import instructions
from ..micro_perf.matrix_unit import MatrixTiles, matrix_tiles
from ..tir.nodes import key, parameters
from ..tir.open_axes import is_open
from ..tir.product_nests import ProductNest, product_nest
from ..tir.read import read_prim_func
from .candidates import seconds_alone
from .constants import array_of
from .dead_code import without_dead_code
from .devices import device_of, find_target
from .marks import MATRIX
from .modules import called_tir, changed_by, is_prim_func
from .open_matrices import OnUnit, OpenProduct, open_product
from .open_schedule import Likely
from .schedule import SCHEDULED, Note, kernel_like
from .size_checks import likely_sizes

#: Ends the name of a function on the unit.
ON_UNIT = "_matrix"
#: How much faster a product must be predicted on the matrix unit (89 products of 17 networks, each as 1.0 chooses: 73.8
#: ms; as 1.05 does 74.5, 1.2 79.6, the faster of both 70.1).
GAIN = 1.0


#: A product of an open number of rows, and the unit's kernels of it.
Open = tuple[OpenProduct, tuple[OnUnit, ...]]


@dataclass(frozen=True, eq=False)
class _Chosen:
    """A function's product, its tiles on the matrix unit, and the position of its weights."""

    nest: ProductNest
    tiles: MatrixTiles
    weights: int


class MatrixProducts:
    """Replaces functions of a prepared module; see the module.

    Parameters
    ----------
    target, device
        As of ``ScheduleWithRoller``.
    emulated : bool
        See `MatrixKernel`.

    Attributes
    ----------
    notes : list of Note
        What was replaced.
    """

    def __init__(self, target: Any = None, device: DeviceSpec | str | None = None, emulated: bool = False) -> None:
        found = find_target(target)
        self.device, self.emulated, self.target = device_of(device, found), emulated, str(found)
        self.named = emulated or names_matrix_unit(parse_target(found).attrs)
        self.notes: list[Note] = []

    def __call__(self, mod: Any) -> Any:
        """Return the module with its products on the matrix unit."""
        chosen = self._all_chosen(mod, False) | self._all_chosen(mod, True)
        if not chosen:
            return mod
        changer = _Changer(mod, chosen, self)
        changed = changed_by(changer, mod)
        for made, words in changer.made.values():
            self.notes.append(Note(str(made.name_hint), **words))
        return without_dead_code(changed)

    def chosen(self, mod: Any) -> dict[str, float]:
        """Return the functions of known extents that it would replace, with their predicted seconds on the unit."""
        found = self._all_chosen(mod, False).items()
        return {str(var.name_hint): one.tiles.seconds for var, one in found if isinstance(one, _Chosen)}

    def _all_chosen(self, mod: Any, opened: bool) -> dict[Any, _Chosen | Open]:
        """Return what is chosen of the functions of open extents, or of the others."""
        if self.device.kind != "cpu" or not self.named:
            return {}
        functions = {var: func for var, func in mod.functions_items() if is_prim_func(func) and is_open(func) == opened}
        likely = likely_sizes(mod)

        def choose(func: Any) -> _Chosen | Open | None:
            return self._open(func, likely) if opened else self._chosen(func)

        found = shared(choose, list(functions.values()), kernel_cache())  # forks leave their plans on disk
        return {var: one for var, one in zip(functions, found, strict=True) if one is not None}

    def _open(self, func: Any, likely: Likely) -> Open | None:
        if func.attrs and SCHEDULED in func.attrs:
            return None
        product = open_product(func, self.device, likely)
        used = product.units(GAIN) if product is not None else ()
        return (product, used) if product is not None and used else None

    def _chosen(self, func: Any) -> _Chosen | None:
        nest = product_nest(func)
        if nest is None or not nest.fills(LANES):
            return None
        windows = nest.windows
        if windows is None and nest.slides:
            return None
        position = next(n for n, p in enumerate(parameters(func)) if key(p) == key(nest.right))
        rows, taps = (windows.all_rows, windows.taps) if windows else (nest.rows, ())
        constants = constant_parameters(func)
        if position not in constants:
            return None
        moved, slots = nest.moved_bytes(), _slots_behind(func, constants)
        tiles = matrix_tiles(rows, nest.channels, nest.columns, self.device, moved, taps, slots)
        if tiles is None:
            return None
        apart = seconds_alone(func, self.device)
        if apart is not None and tiles.seconds * GAIN >= apart:  # not planned: TVM's own schedule is no faster
            return None
        return _Chosen(nest, tiles, position)

    def func(self, one: _Chosen | Open) -> tuple[Any, dict[str, Any]]:
        """Return the function that is to compute a product, and words about it."""
        if isinstance(one, _Chosen):
            words = {"recipe": "cpu.matrix", "predicted_us": one.tiles.seconds * 1e6, "plan": str(one.tiles)}
            return product_func(one.nest, one.tiles, self.device.units, self.emulated), words
        product, used = one
        return product.func(used, self.target, self.device.units, self.emulated)


def _slots_behind(func: Any, constants: Collection[str | int]) -> float:
    """Return the vector instruction slots of what follows a function's product, an element of its result.

    They are 0 if it cannot be planned on vectors (a cast to float8): the unit's plan is compared with nothing then.
    """
    try:
        expression = read_prim_func(func, constants=constants).expression
    except UnsupportedOperator:
        return 0.0
    return instructions(*(stage.ops for stage in expression.epilogues))


def product_func(nest: ProductNest, tiles: MatrixTiles, units: int, emulated: bool = False) -> Any:
    """Return a function with a product on the matrix unit; `packed_weights`, flat, are in place of its weights."""
    _, width, depth = tiles.blocks
    right = tirx.decl_buffer([width * depth * OPERAND], "uint16", "weights")
    if (windows := nest.windows) is None:
        body = MatrixKernel(tiles, nest.left_at, right, nest.stored, units, emulated).body()
    else:
        body = MatrixKernel(
            tiles, nest.left_of_pixel, right, lambda pixel, *others: nest.stored(windows.row(pixel), *others),
            units, emulated, windows.within,
        ).body()  # fmt: skip
    params = [right if key(p) == key(nest.right) else p for p in parameters(nest.func)]
    return kernel_like(nest.func, params, body, {MATRIX: True})


@relax.expr_functor.mutator
class _Changer(relax.PyExprMutator):
    """Calls functions on the matrix unit, with packed weights."""

    def __init__(self, mod: Any, chosen: dict[Any, _Chosen | Open], products: MatrixProducts) -> None:
        super().__init__(mod)
        self.chosen, self.products = chosen, products
        #: A function's variable -> that of its product on the unit, and words about it.
        self.made: dict[Any, tuple[Any, dict[str, Any]]] = {}

    def visit_call_(self, op: Any) -> Any:
        op = self.visit_expr_post_order(op)
        called = called_tir(op)
        if called not in self.chosen:
            return op
        chosen, arguments = self.chosen[called], list(op.args[1].fields)
        product = chosen if isinstance(chosen, _Chosen) else chosen[0]
        weights = array_of(arguments[product.weights])
        if weights is None or not is_splittable(weights):
            return op
        if called not in self.made:
            func, words = self.products.func(chosen)
            self.made[called] = self.builder_.add_func(func, f"{called.name_hint}{ON_UNIT}"), words
        places = chosen.tiles.places if isinstance(chosen, _Chosen) else 1
        packed = relax.const(packed_weights(product.nest.matrix(weights), places).reshape(-1), "uint16")
        if isinstance(chosen, _Chosen):
            arguments[product.weights] = packed
        else:  # the others stay, for few rows
            arguments.insert(chosen[0].inputs, packed)
        return relax.call_tir(self.made[called][0], relax.Tuple(arguments), list(op.ty_args), *op.args[2:])
