"""Recurrences in Relax: a layer as a product of all its inputs and one call of a loop over its steps.

An import does not know the target. It makes a kernel for any CPU and marks it with its layer. `PlanRecurrences`
replaces it by the kernel that the model chooses for the target, and puts its weights in other blocks.
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
from ..recurrences.kernel import kernel, tensor_shapes
from ..recurrences.onnx import PLACES, Node, of_node, zeros
from ..recurrences.tiles import Tiles, plain_tiles, plan
from ..recurrences.weights import in_other_blocks, prepared
from .constants import array_of
from .devices import device_of, find_target
from .marks import RECURRENCE
from .modules import called_tir, each_function, with_functions
from .schedule import SCHEDULED, Note


def recurrent(kind: str, bb: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """Return Y, Y_h (and Y_c) of a node of ONNX, as a tuple.

    Parameters
    ----------
    kind : {'LSTM', 'GRU', 'RNN'}
    bb : relax.BlockBuilder
    inputs : sequence
        Of the node; None where one is absent.

    Raises
    ------
    UnsupportedOperator
        See `recurrences.onnx.of_node`.
    """
    given = {name: inputs[at] if at < len(inputs) else None for name, at in PLACES.items()}
    x: Any = given["X"]
    arrays = {name: None if given[name] is None else array_of(given[name]) for name in ("W", "R", "B", "P")}
    known = {name: array for name, array in arrays.items() if array is not None or given[name] is None}
    shape = [int(e) if isinstance(e, tirx.IntImm) else str(e) for e in x.ty.shape.values] if x.ty.shape else ["?"]
    node = of_node(kind, attributes, shape, str(x.ty.dtype), known, given["sequence_lens"] is not None)
    names = {"sequence_lens": "lengths", "initial_h": "h0", "initial_c": "c0"}
    states = {own: given[name] for name, own in names.items() if given[name] is not None}
    if node.batch_first:
        x = bb.emit(relax.op.permute_dims(x, [1, 0, 2]))
        turned = {name: bb.emit(relax.op.permute_dims(e, [1, 0, 2])) for name, e in states.items() if name != "lengths"}
        states |= turned
    y, *last = layer_of(bb, node, x, states)
    if node.batch_first:
        y = bb.emit(relax.op.permute_dims(y, [2, 0, 1, 3]))
        last = [bb.emit(relax.op.permute_dims(one, [1, 0, 2])) for one in last]
    return relax.Tuple([y, *last])


def layer_of(bb: Any, node: Node, x: Any, states: Mapping[str, Any]) -> list[Any]:
    """Return the outputs of all steps, the last state and, of an LSTM, the cell's.

    Parameters
    ----------
    x : relax.Expr
        [steps, batch, features].
    states : mapping
        'h0', 'c0', 'lengths' -> expression, as far as they are given.
    """
    layer = node.layer
    tiles = plain_tiles(layer)
    own = prepared(layer, tiles, *(node.weights[name] for name in ("W", "R", "B", "P")))
    reads, writes = tensor_shapes(layer, tiles)
    features = own["inputs"].shape[0]
    flat = bb.emit(relax.op.reshape(x, (layer.steps * layer.batch, features)))
    product = bb.emit(relax.op.matmul(flat, relax.const(own["inputs"])))
    sums = bb.emit(relax.op.add(product, relax.const(own["start"])))
    given: dict[str, Any] = {"sums": bb.emit(relax.op.reshape(sums, reads["sums"]))}
    missing = tiles.units - layer.hidden
    for name, state in states.items():
        if name == "lengths":
            given[name] = state if str(state.ty.dtype) == "int32" else bb.emit(relax.op.astype(state, "int32"))
        else:
            given[name] = bb.emit(relax.op.nn.pad(state, [0, 0, 0, 0, 0, missing])) if missing else state
    arrays = {**{name: zeros(layer, tiles.units) for name in ("h0", "c0")}, **own}
    arguments = [given[name] if name in given else relax.const(arrays[name]) for name in reads]
    function = bb.add_func(prim_func(layer, tiles), layer.cell.kind.lower())
    kinds = [relax.TensorType(shape, "float32") for shape in writes.values()]
    made = bb.emit(relax.call_tir(function, relax.Tuple(arguments), kinds))
    results = []
    for number, name in enumerate(writes):
        if name in ("y", "h", "c"):
            result = bb.emit(relax.TupleGetItem(made, number))
            results.append(_without(bb, result, layer.hidden, writes[name]) if missing else result)
    return results


def _without(bb: Any, tensor: Any, hidden: int, shape: Sequence[int]) -> Any:
    """Return a tensor without the units that are none."""
    return bb.emit(relax.op.strided_slice(tensor, [len(shape) - 1], [0], [hidden]))


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
            self.notes.append(Note(str(var.name_hint), "cpu.recurrence", predicted * 1e6, plan=str(tiles)))
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
