"""Recurrences in Relax: a layer's kernel is a PrimFunc, marked with its layer.

`PlanRecurrences` replaces an import's kernel by the one that the model chooses for the target, and puts its weights in
other blocks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax, tirx

from ..codegen.dialect import dialect_here
from ..device import DeviceSpec
from ..errors import UnsupportedOperator
from ..recurrences.cell import Recurrence
from ..recurrences.graph import Graph
from ..recurrences.kernel import kernel, tensor_shapes
from ..recurrences.tiles import Tiles, plain_tiles, plan
from ..recurrences.weights import in_other_blocks
from .constants import array_of
from .devices import device_of, find_target
from .marks import RECURRENCE
from .modules import called_tir, each_function, with_functions
from .schedule import SCHEDULED, Note


class RelaxGraph(Graph):
    """Graph of a Relax function.

    Parameters
    ----------
    bb : relax.BlockBuilder
    """

    def __init__(self, bb: Any) -> None:
        self.bb = bb

    def kind(self, x: Any) -> tuple[list[int | str], str]:
        extents = x.ty.shape.values if x.ty.shape else ["?"]
        return [int(e) if isinstance(e, tirx.IntImm) else str(e) for e in extents], str(x.ty.dtype)

    def array(self, x: Any) -> Any:
        return array_of(x)

    def constant(self, array: Any) -> Any:
        return relax.const(array)

    def turned(self, x: Any, axes: Sequence[int]) -> Any:
        return self.bb.emit(relax.op.permute_dims(x, list(axes)))

    def reshaped(self, x: Any, shape: Sequence[int]) -> Any:
        return self.bb.emit(relax.op.reshape(x, tuple(shape)))

    def product(self, x: Any, columns: Any, start: Any) -> Any:
        product = self.bb.emit(relax.op.matmul(x, relax.const(columns)))
        return self.bb.emit(relax.op.add(product, relax.const(start)))

    def padded(self, x: Any, zeros: int) -> Any:
        return self.bb.emit(relax.op.nn.pad(x, [0, 0, 0, 0, 0, zeros]))

    def cut(self, x: Any, rank: int, count: int) -> Any:
        return self.bb.emit(relax.op.strided_slice(x, [rank - 1], [0], [count]))

    def int32(self, x: Any) -> Any:
        return self.bb.emit(relax.op.astype(x, "int32"))

    def called(self, layer: Recurrence, arguments: Sequence[Any]) -> Sequence[Any]:
        tiles = plain_tiles(layer)
        function = self.bb.add_func(prim_func(layer, tiles), layer.cell.kind.lower())
        kinds = [relax.TensorType(shape, "float32") for shape in tensor_shapes(layer, tiles)[1].values()]
        made = self.bb.emit(relax.call_tir(function, relax.Tuple(list(arguments)), kinds))
        return [self.bb.emit(relax.TupleGetItem(made, number)) for number in range(len(kinds))]


def prim_func(layer: Recurrence, tiles: Tiles) -> Any:
    """Return the kernel of a layer, marked as one and as scheduled."""
    reads, writes = tensor_shapes(layer, tiles)
    tensors = {
        name: tirx.decl_buffer(shape, "int32" if name == "lengths" else "float32", name)
        for name, shape in {**reads, **writes}.items()
    }
    body = kernel(layer, tiles, dialect_here(), tensors)
    told = json.dumps(layer.to_json(), sort_keys=True)
    attributes = {SCHEDULED: True, RECURRENCE: told, "op_pattern": 8, "tirx.noalias": True}
    return tirx.PrimFunc(list(tensors.values()), body).with_attrs(attributes)


class PlanRecurrences:
    """Put kernels that the model chooses for a target in the place of an import's.

    Parameters
    ----------
    target, device
        See `pipeline.prepare`.

    Attributes
    ----------
    notes : list of Note
        What the last run chose.

    Examples
    --------
    >>> recurrences = PlanRecurrences({"kind": "llvm", "num-cores": 2})
    >>> len(recurrences(tvm.IRModule({})).functions), recurrences.notes
    (0, [])
    """

    def __init__(self, target: Any = None, device: DeviceSpec | str | None = None) -> None:
        self.target, self.device = target, device
        self.notes: list[Note] = []

    def __call__(self, mod: Any) -> Any:
        """Return the module with its kernels.

        Raises
        ------
        UnsupportedOperator
            The target is no CPU.
        """
        self.notes = []
        found = {
            var: Recurrence.from_json(json.loads(str(func.attrs[RECURRENCE])))
            for var, func in mod.functions_items()
            if type(func).__name__ == "PrimFunc" and func.attrs and RECURRENCE in func.attrs
        }
        if not found:
            return mod
        target = find_target(self.target)
        if target.kind.name != "llvm":
            kinds = ", ".join(sorted({layer.cell.kind for layer in found.values()}))
            told = f"{kinds}: recurrences are planned for CPUs, not for {target.kind.name}"
            raise UnsupportedOperator(told, remedy="build for a CPU: --target llvm")
        device = device_of(self.device, target)
        plans = {var: plan(layer, device) for var, layer in found.items()}
        mod = each_function(mod, _Packing({var: tiles for var, (tiles, _) in plans.items()}, found).visit_expr)
        kernels = {}
        for var, layer in found.items():
            tiles, predicted = plans[var]
            kernels[var] = prim_func(layer, tiles).with_attr("global_symbol", str(var.name_hint))
            name, recipe = str(var.name_hint), "cpu.recurrence"
            self.notes.append(Note(name, recipe, predicted * 1e6, plan=f"{recipe} {tiles}"))
        return with_functions(mod, kernels)


@relax.expr_functor.mutator
class _Packing(relax.PyExprMutator):
    """Packs the weights of calls of kernels in the blocks of their tiles."""

    def __init__(self, tiles: Mapping[Any, Tiles], layers: Mapping[Any, Recurrence]) -> None:
        super().__init__()
        self.tiles, self.layers = dict(tiles), dict(layers)

    def visit_call_(self, op: Any) -> Any:
        op = super().visit_call_(op)
        called = called_tir(op)
        if called not in self.tiles:
            return op
        tiles, layer = self.tiles[called], self.layers[called]
        at = list(tensor_shapes(layer, tiles)[0]).index("weights")
        arguments = list(op.args[1].fields)
        weights = in_other_blocks(array_of(arguments[at]), layer, plain_tiles(layer), tiles)
        arguments[at] = relax.const(weights)
        return relax.call_tir(called, relax.Tuple(arguments), list(op.ty_args[0].fields))
