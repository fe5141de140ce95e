"""Recurrences in Relay: an operator a kind of cell, whose computation is the kernel of its layer.

Relay has no call of a function of loops: an operator of our own stands for it, and its TE is an extern of those loops.
Its attributes are the layer and the tiles. An import has tiles for any CPU, with which plain ``relay.build`` builds it
too; `with_recurrences` puts those that the model chooses for a target in their place, and the weights in other blocks;
for a GPU it writes the steps out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

import tvm
from tvm import relay, te

from ..codegen.dialect import dialect_here
from ..device import DeviceSpec
from ..errors import UnsupportedOperator
from ..recurrences.cell import GATES, Recurrence
from ..recurrences.graph import Graph
from ..recurrences.kernel import kernel, tensor_shapes
from ..recurrences.tiles import Tiles, plain_tiles, plan
from ..recurrences.weights import in_other_blocks
from ..tuning.model_report import KernelPlan
from .dataflow import again, children, ordered
from .recurrent_steps import written_out

#: Kind of a cell -> its operator.
OPERATORS = {kind: f"roller_tvm.{kind.lower()}" for kind in GATES}


@cache
def register() -> None:
    """Register the operators with this TVM, once a process."""
    strategy = tvm.target.override_native_generic_func("roller_tvm_recurrence")(_strategy)
    for kind, name in OPERATORS.items():
        relay.op.op.register(name, f"{kind} of all steps, of the products of its inputs")
        operator = relay.op.op.get(name)
        operator.set_attrs_type_key("DictAttrs")
        operator.add_type_rel(f"RollerTvm{kind}", _result_type)
        relay.op.op.register_pattern(name, relay.op.OpPattern.OPAQUE)
        relay.op.op.register_strategy(name, strategy)


def _result_type(_types: Sequence[Any], attributes: Any) -> Any:
    writes = tensor_shapes(*_read(attributes)[:2])[1]
    return relay.TupleType([relay.TensorType(shape, "float32") for shape in writes.values()])


def _strategy(_attributes: Any, _inputs: Any, _result: Any, target: Any) -> Any:
    if target.kind.name != "llvm":
        told = f"recurrences are planned for CPUs, not for {target.kind.name}"
        raise UnsupportedOperator(told, remedy="build with roller_tvm.relay.build, which writes their steps out")
    strategy = relay.op.OpStrategy()
    strategy.add_implementation(_compute, _schedule, name="roller_tvm.recurrence")
    return strategy


def _compute(attributes: Any, inputs: Sequence[Any], _result: Any) -> Any:
    layer, tiles, _ = _read(attributes)
    reads, writes = tensor_shapes(layer, tiles)

    def statement(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        return kernel(layer, tiles, dialect_here(), dict(zip((*reads, *writes), (*ins, *outs), strict=True)))

    kinds = ["float32"] * len(writes)
    return te.extern(list(writes.values()), inputs, statement, dtype=kinds, name=layer.cell.kind.lower())


def _schedule(_attributes: Any, outs: Sequence[Any], _target: Any) -> Any:
    return te.create_schedule([out.op for out in outs])


def _attributes(layer: Recurrence, tiles: Tiles, predicted: float) -> Any:
    told = {"layer": layer.to_json(), "tiles": asdict(tiles), "predicted_s": predicted}
    return tvm.ir.make_node("DictAttrs", roller_tvm=json.dumps(told, sort_keys=True))


def _read(attributes: Any) -> tuple[Recurrence, Tiles, float]:
    """Return layer, tiles and predicted seconds of an operator's attributes."""
    told = json.loads(str(attributes["roller_tvm"]))
    return Recurrence.from_json(told["layer"]), Tiles(**told["tiles"]), told["predicted_s"]


class RelayGraph(Graph):
    """Graph of a Relay function."""

    def kind(self, x: Any) -> tuple[list[int | str], str]:
        known = relay.frontend.common.infer_type(x).checked_type
        shape: list[int | str] = [int(e) if isinstance(e, tvm.tir.IntImm) else str(e) for e in known.shape]
        return shape, str(known.dtype)

    def array(self, x: Any) -> Any:
        return x.data.numpy() if isinstance(x, relay.Constant) else None

    def constant(self, array: Any) -> Any:
        return relay.const(array)

    def turned(self, x: Any, axes: Sequence[int]) -> Any:
        return relay.transpose(x, list(axes))

    def reshaped(self, x: Any, shape: Sequence[int]) -> Any:
        return relay.reshape(x, tuple(shape))

    def product(self, x: Any, columns: Any, start: Any) -> Any:
        return relay.add(relay.nn.dense(x, relay.const(columns.T.copy())), relay.const(start))

    def padded(self, x: Any, zeros: int) -> Any:
        return relay.nn.pad(x, ((0, 0), (0, 0), (0, zeros)))

    def cut(self, x: Any, rank: int, count: int) -> Any:
        return relay.strided_slice(x, [0], [count], axes=[rank - 1])

    def int32(self, x: Any) -> Any:
        return relay.cast(x, "int32")

    def called(self, layer: Recurrence, arguments: Sequence[Any]) -> Sequence[Any]:
        register()
        tiles = plain_tiles(layer)
        operator = relay.op.op.get(OPERATORS[layer.cell.kind])
        call = relay.Call(operator, list(arguments), _attributes(layer, tiles, 0.0))
        return [relay.TupleGetItem(call, number) for number in range(len(tensor_shapes(layer, tiles)[1]))]


def with_recurrences(mod: Any, target: Any, device: DeviceSpec | None) -> Any:
    """Return a module with recurrences as a target takes them; itself if it has none.

    For a CPU they have the tiles that the model chooses; elsewhere their steps are written out.

    Examples
    --------
    >>> mod = with_recurrences(mod, target, device)
    """
    register()
    main = mod["main"]
    found: list[Any] = []
    relay.analysis.post_order_visit(main, lambda expr: found.append(expr) if is_recurrence(expr) else None)
    on_cpu = target.kind.name == "llvm"
    if not found or (on_cpu and device is None):
        return mod
    made: dict[Any, Any] = {}
    for expr in ordered(main.body):
        before = children(expr)
        after = [made[e] for e in before]
        if is_recurrence(expr):
            made[expr] = _planned(expr, after, device) if on_cpu and device is not None else _written_out(expr, after)
        elif isinstance(expr, relay.TupleGetItem) and isinstance(after[0], relay.Tuple):
            made[expr] = after[0].fields[expr.index]
        else:
            made[expr] = again(expr, before, after)
    function = relay.Function(main.params, made[main.body], main.ret_type, main.type_params, main.attrs)
    functions = {**dict(mod.functions.items()), mod.get_global_var("main"): function}
    return relay.transform.InferType()(tvm.IRModule(functions, mod.type_definitions))


def _written_out(call: Any, arguments: list[Any]) -> Any:
    layer, tiles, _ = _read(call.attrs)
    return relay.Tuple(written_out(layer, tiles, arguments))


def is_recurrence(expr: Any) -> bool:
    return isinstance(expr, relay.Call) and getattr(expr.op, "name", "") in OPERATORS.values()


def _planned(call: Any, arguments: list[Any], device: DeviceSpec) -> Any:
    """Return a call of the kernel that the model chooses for a CPU, its weights in the blocks of its tiles."""
    layer, before, _ = _read(call.attrs)
    tiles, predicted = plan(layer, device)
    at = list(tensor_shapes(layer, tiles)[0]).index("weights")
    weights = arguments[at]
    if not isinstance(weights, relay.Constant):  # a parameter whose value is elsewhere
        return again(call, list(call.args), arguments)
    if tiles != before:
        arguments[at] = relay.const(in_other_blocks(weights.data.numpy(), layer, before, tiles))
    return relay.Call(call.op, arguments, _attributes(layer, tiles, predicted), call.type_args, call.span)


def kernel_plans(functions: Mapping[str, Any], proves: DeviceSpec | None) -> list[KernelPlan]:
    """Return the plans of the recurrences among the functions that ``relay.build`` tells of, by name.

    Parameters
    ----------
    proves : DeviceSpec or None
        Prove the kernels for this device.
    """
    found = []
    for name, known in functions.items():
        for function in known.relay_primfuncs.values():
            if isinstance(function, relay.Function) and is_recurrence(function.body):
                _, tiles, predicted = _read(function.body.attrs)
                proof = _proof(function.body.attrs, proves, str(name)) if proves is not None else ""
                plan = f"cpu.recurrence {tiles}"
                found.append(KernelPlan(str(name), "planned", plan, predicted, proof=proof))
    return found


def _proof(attributes: Any, device: DeviceSpec, name: str) -> str:
    from .proving import prove_alone

    reads, _ = tensor_shapes(*_read(attributes)[:2])
    ins = [te.placeholder(shape, "int32" if n == "lengths" else "float32", n) for n, shape in reads.items()]
    outs = _compute(attributes, ins, None)
    return prove_alone(_schedule(attributes, outs, None), [*ins, *outs], device, name)
