"""A dataflow block with plans in the place of their calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tvm import relax

from ..codegen.host_code import BufferSpec
from ..rammer.functions import Call
from ..rammer.fused_kernel import FusedKernel
from ..rammer.partition import topological
from ..tir.nodes import key
from ..tuning.numerics import shape_of
from .dataflow import Block, Bound, type_of, used_variables


@dataclass(frozen=True, eq=False)
class FusedCall:
    """Calls of a block that one PrimFunc computes.

    Parameters
    ----------
    var : tvm.ir.GlobalVar
        The function's.
    reads : tuple of str
        Tensors of the block, for its first parameters.
    writes : tuple of str or BufferSpec
        For its last ones: tensors of the block, and memory that nobody else sees.
    """

    calls: tuple[Call, ...]
    var: Any
    reads: tuple[str, ...]
    writes: tuple[str | BufferSpec, ...]


@dataclass(frozen=True, eq=False)
class _Unit:
    """Bindings that come together."""

    numbers: tuple[int, ...]
    fused: FusedCall | None = None


class Made(NamedTuple):
    """A PrimFunc of many rTasks, the tensors of the graph for its parameters, and its kernel if it is one for a GPU."""

    func: Any
    reads: tuple[str, ...]
    writes: tuple[str | BufferSpec, ...]
    kernel: FusedKernel | None = None


def tensor_type(block: Block, tensor: str) -> Any:
    """Return the type of a tensor of a block."""
    return type_of(block.values[tensor])


def spec_of(block: Block, tensor: str) -> BufferSpec:
    """Return a tensor of a block as a buffer of host code."""
    found = tensor_type(block, tensor)
    return BufferSpec(tensor, tuple(int(e) for e in found.shape.values), str(found.dtype))


def rewritten(mod: Any, block: Block, fused: Sequence[FusedCall]) -> Any:
    """The dataflow block with these calls fused; variables that only a plan needs are bound no more.

    Plans are convex, so the bindings have an order: that of the block, each plan where its last call was.

    Parameters
    ----------
    mod : tvm.IRModule
        Which has the functions of the plans.
    """
    units = _units(block, fused)
    builder = relax.BlockBuilder(mod)
    handed = {t for f in fused for t in f.writes if isinstance(t, str)}
    lost = {t for f in fused for c in f.calls for t in c.writes} - handed
    bindings: list[Any] = []
    for unit in _ordered(block, units):
        if unit.fused is not None:
            bindings += _bindings(builder, block, unit)
            continue
        bound = block.bounds[unit.numbers[0]]
        if not lost.intersection(bound.reads):
            value = _value(block, bound)
            again = value is not bound.binding.value
            bindings.append(relax.VarBinding(bound.binding.var, builder.normalize(value)) if again else bound.binding)
    return relax.DataflowBlock(bindings)


def _value(block: Block, bound: Bound) -> Any:
    """Return the value of a binding; for another name of a tuple's element, that element."""
    value = bound.binding.value
    return block.values[bound.reads[0]] if not bound.writes and isinstance(value, relax.TupleGetItem) else value


def _units(block: Block, fused: Sequence[FusedCall]) -> list[_Unit]:
    number = {b.call.name: n for n, b in enumerate(block.bounds) if b.call}
    units = [_Unit(tuple(number[c.name] for c in f.calls), f) for f in fused]
    taken = {n for unit in units for n in unit.numbers}
    return units + [_Unit((n,)) for n in range(len(block.bounds)) if n not in taken]


def _ordered(block: Block, units: Sequence[_Unit]) -> Iterator[_Unit]:
    """Each unit after those whose variables it uses, and those that the block divides it from."""
    maker = {key(b.binding.var): n for n, b in enumerate(block.bounds)}
    home = {n: u for u, unit in enumerate(units) for n in unit.numbers}

    def needed(number: int, bound: Bound, inside: bool) -> set[int]:
        values = [block.values[t] for t in bound.reads] if inside else [_value(block, bound)]
        return {maker[key(v)] for value in values for v in used_variables(value) if key(v) in maker}

    before = [{home[m] for n in unit.numbers
               for m in (*needed(n, block.bounds[n], unit.fused is not None), *block.fences[n])} - {u}
              for u, unit in enumerate(units)]  # fmt: skip
    order = topological(before, [max(unit.numbers) for unit in units])
    if len(order) < len(units):
        raise ValueError(f"plans of {block.function} wait for each other")
    return (units[u] for u in order)


def _bindings(builder: Any, block: Block, unit: _Unit) -> Iterator[Any]:
    """The call of a plan's function, and the variables that its calls had, as elements of what it makes."""
    fused = unit.fused
    assert fused is not None
    types = [relax.TensorType(w.shape, w.dtype) if isinstance(w, BufferSpec) else tensor_type(block, w)
             for w in fused.writes]  # fmt: skip
    arguments = []
    for tensor, param in zip(fused.reads, builder.get()[fused.var].params, strict=False):
        value = block.values[tensor]
        if isinstance(value, relax.TupleGetItem):
            value = relax.DataflowVar(tensor, tensor_type(block, tensor))
            yield relax.VarBinding(value, builder.normalize(block.values[tensor]))
        taken = shape_of(param)
        if taken != tuple(int(e) for e in value.ty.shape.values):  # it was read through a view
            view = builder.normalize(relax.op.reshape(value, taken))
            value = relax.DataflowVar(f"{tensor}_view", view.ty)
            yield relax.VarBinding(value, view)
        arguments.append(value)
    single = len(types) == 1
    call = builder.normalize(relax.call_tir(fused.var, relax.Tuple(arguments), types[0] if single else types))
    made = relax.DataflowVar(str(fused.var.name_hint), call.ty)
    yield relax.VarBinding(made, call)
    place = {w: n for n, w in enumerate(fused.writes) if isinstance(w, str)}
    for number in unit.numbers:
        bound = block.bounds[number]
        if not all(t in place for t in bound.writes):
            continue
        elements = [made if single else relax.TupleGetItem(made, place[t]) for t in bound.writes]
        value = elements[0]
        if hasattr(bound.binding.var.ty, "fields"):  # an element of a tuple is a binding of its own
            named = []
            for tensor, element in zip(bound.writes, elements, strict=True):
                var = relax.DataflowVar(tensor, tensor_type(block, tensor))
                yield relax.VarBinding(var, builder.normalize(element))
                named.append(var)
            value = relax.Tuple(named)
        yield relax.VarBinding(bound.binding.var, builder.normalize(value))


def with_blocks(func: Any, blocks: dict[int, Any]) -> Any:
    """A Relax function with other blocks in the places of these."""
    every = [blocks.get(n, b) for n, b in enumerate(func.body.blocks)]
    body = relax.SeqExpr(every, func.body.body)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
