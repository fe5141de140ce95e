"""The dataflow blocks of a Relax module as graphs of calls.

Besides their data flow, a call that writes into the memory of other values stays behind all calls before it and ahead
of all after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import tvm
from tvm import relax

from ..codegen.cuda_text import dtype_bytes
from ..rammer.functions import Call
from ..rammer.fuse import CallGraph
from ..rammer.partition import divided
from ..te.nodes import unique
from ..tir.nodes import key
from .constants import is_constant
from .modules import each_function

#: Operators whose result is the memory of their operand, from its start.
_VIEWS = ("relax.reshape", "relax.memory.view")
#: Calls that write into what they are given.
_IN_PLACE = ("relax.call_tir_inplace", "relax.call_inplace_packed")


@relax.expr_functor.visitor
class _InPlace(relax.PyExprVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def visit_call_(self, op: Any) -> None:
        self.found |= getattr(op.op, "name", "") in _IN_PLACE
        super().visit_call_(op)


def writes_in_place(func: Any) -> bool:
    """Return whether a Relax function writes into the memory of a value, so that its readers must not be moved.

    Examples
    --------
    >>> writes_in_place(mod["main"])
    False
    """
    look = _InPlace()
    look.visit_expr(func)
    return look.found


def rewritten(mod: Any, rewriter: Callable[[Any], Any]) -> Any:
    """Return a module with its Relax functions as a mutator makes them; those that write in place stay.

    Parameters
    ----------
    rewriter : function of a module
        Returns the ``PyExprMutator``, a new one for each function.
    """
    return each_function(mod, lambda func: func if writes_in_place(func) else rewriter(mod).visit_expr(func), False)


@dataclass(frozen=True, eq=False)
class Bound:
    """A binding of a dataflow block: a call that can be planned, something else, or another name of a tensor.

    Parameters
    ----------
    reads : tuple of str
        Tensors.
    writes : tuple of str
        Empty where it is another name of what it reads.
    reason : str
        Why it cannot be planned; '' where it can.
    in_place : bool
        Whether it writes into the memory of what it reads.
    """

    binding: Any
    call: Call | None
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    reason: str = ""
    in_place: bool = False


@dataclass(frozen=True, eq=False)
class Block:
    """A dataflow block read.

    Parameters
    ----------
    number : int
        Of the block in the function.
    bounds : tuple of Bound
        In the order of the block.
    values : dict
        Tensor -> the expression that it is: a variable, an element of one, a constant.
    kept : frozenset of str
        Tensors that are read outside of the block.
    """

    function: str
    number: int
    bounds: tuple[Bound, ...]
    values: dict[str, Any]
    kept: frozenset[str]

    @cached_property
    def fences(self) -> tuple[tuple[int, ...], ...]:
        """For each binding those that it comes after, whatever it reads: what is written in place divides the block."""
        return divided(b.in_place for b in self.bounds)

    @cached_property
    def made(self) -> frozenset[str]:
        """Tensors that its bindings make."""
        return frozenset(t for b in self.bounds for t in b.writes)

    @cached_property
    def sizes(self) -> dict[str, int | None]:
        """Bytes of each tensor; None if they are known only at run time."""
        return {name: type_bytes(type_of(value)) for name, value in self.values.items()}

    def graph(self, elsewhere: Iterable[int | None] = ()) -> CallGraph:
        """Return the calls; each binding that cannot be planned is one too, called by its number.

        Parameters
        ----------
        elsewhere : iterable of int or None
            Bytes of tensors that other blocks read.
        """
        calls = [b.call or Call(f"binding {n}", None, (*b.reads, *b.writes), len(b.writes), b.reason, b.in_place)
                 for n, b in enumerate(self.bounds) if b.writes]
        return CallGraph(tuple(calls), self.kept, self.sizes, tuple(elsewhere))

    def outside(self, known: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return (name, reason) of the bindings in no plan, given the reasons of calls."""
        every = [(b, b.reason or (known.get(b.call.name, "") if b.call else "")) for b in self.bounds]
        return [(name_of(b.binding), reason) for b, reason in every if reason]


def type_of(value: Any) -> Any:
    """Return the type of a value; of an element of a tuple, the element's."""
    return value.tuple_value.ty.fields[value.index] if isinstance(value, relax.TupleGetItem) else value.ty


def type_bytes(kind: Any) -> int | None:
    """Return the bytes of a value of a type: of all elements of a tuple; None if they are known only at run time."""
    if hasattr(kind, "fields"):
        each = [type_bytes(field) for field in kind.fields]
        return None if None in each else sum(e for e in each if e is not None)
    if not isinstance(kind, relax.TensorType):
        return 0  # a size, a function: nothing in the device's memory
    return prod(int(e) for e in kind.shape.values) * dtype_bytes(str(kind.dtype)) if static_tensor(kind) else None


def read_blocks(mod: Any) -> Iterator[Block]:
    """Yield the dataflow blocks of a module's Relax functions.

    Examples
    --------
    >>> [block.function for block in read_blocks(mod)]
    ['main']
    """
    for var, func in mod.functions_items():
        if not isinstance(func, relax.Function) or not isinstance(func.body, relax.SeqExpr):
            continue
        if func.attrs and ("Codegen" in func.attrs or "Primitive" in func.attrs):
            continue
        for number, block in enumerate(func.body.blocks):
            if isinstance(block, relax.DataflowBlock):
                yield _Reader(mod).read(str(var.name_hint), number, block)


class _Reader:
    """Reads one dataflow block."""

    def __init__(self, mod: Any) -> None:
        self.mod = mod
        self.taken: set[str] = set()
        self.calls: set[str] = set()
        self.names: dict[int, tuple[str, ...]] = {}  # variable -> its tensors, of a tuple the elements
        self.values: dict[str, Any] = {}

    def read(self, function: str, number: int, block: Any) -> Block:
        bounds = [self._bound(binding) for binding in block.bindings]
        outputs = (b.var for b in block.bindings if not isinstance(b.var, relax.DataflowVar))
        kept = frozenset(t for var in outputs for t in self.names[key(var)])
        return Block(function, number, tuple(bounds), dict(self.values), kept)

    def _bound(self, binding: Any) -> Bound:
        value = binding.value
        same = self._alias(value)
        if same is not None and isinstance(binding, relax.VarBinding):
            self.names[key(binding.var)] = same
            return Bound(binding, None, same, ())
        call, reason = self._call(binding)
        if call is not None:
            return Bound(binding, call, call.reads, call.writes)
        reads = dict.fromkeys(t for var in used_variables(value) for t in self._of(var))
        in_place = _operator(value) in _IN_PLACE
        return Bound(binding, None, tuple(reads), self._written(binding.var), reason, in_place)

    def _of(self, value: Any) -> tuple[str, ...]:
        """The tensors that a variable or constant is."""
        if key(value) not in self.names:
            name = unique(str(value.name) if isinstance(value, relax.Var) else "constant", self.taken)
            self.names[key(value)] = (name,)
            self.values[name] = value
        return self.names[key(value)]

    def _alias(self, value: Any) -> tuple[str, ...] | None:
        """Return the tensors that a value aliases without computing; None if it computes."""
        if isinstance(value, relax.Var):
            return self._of(value)
        if isinstance(value, relax.Tuple) and all(isinstance(f, relax.Var) for f in value.fields):
            fields = [self._of(f) for f in value.fields]
            return tuple(t for names in fields for t in names) if all(len(n) == 1 for n in fields) else None
        if isinstance(value, relax.TupleGetItem) and isinstance(value.tuple_value, relax.Var):
            every = self._of(value.tuple_value)
            return every[value.index : value.index + 1] if len(every) == _width(value.tuple_value) else None
        if isinstance(value, relax.Call) and _operator(value) in _VIEWS:
            base = value.args[0]
            if isinstance(base, relax.Var) and _elements(value) == _elements(base) is not None:
                return self._of(base)
        return None

    def _written(self, var: Any) -> tuple[str, ...]:
        """Names for what a binding makes."""
        fields = list(var.ty.fields) if hasattr(var.ty, "fields") else None
        if fields is None or not all(hasattr(f, "dtype") for f in fields):
            return self._of(var)
        base = str(var.name)
        names = tuple(unique(f"{base}_{n}", self.taken) for n in range(len(fields)))
        for n, name in enumerate(names):
            self.values[name] = relax.TupleGetItem(var, n)
        self.names[key(var)] = names
        return names

    def _call(self, binding: Any) -> tuple[Call | None, str]:
        """A call that can be planned, or why it cannot."""
        value = binding.value
        op = _operator(value)
        if not isinstance(value, relax.Call) or not isinstance(binding, relax.VarBinding) or op != "relax.call_tir":
            return None, f"it is {op.removeprefix('relax.') if op else type(value).__name__}, no call of a PrimFunc"
        var = value.args[0]
        given = value.args[1]
        if len(value.args) > 2 or not isinstance(given, relax.Tuple):
            return None, "its sizes are known only at run time"
        arguments = list(given.fields)
        fields = list(binding.var.ty.fields) if hasattr(binding.var.ty, "fields") else [binding.var]
        if not all(static_tensor(a) for a in (*arguments, *fields)):
            return None, "its sizes are known only at run time"
        if not all(isinstance(a, relax.Var) or is_constant(a) for a in arguments):
            return None, "an argument of it is no tensor"
        tensors = [t for a in arguments for t in self._of(a)]
        if len(tensors) != len(arguments):
            return None, "an argument of it is a tuple"
        func, name = self.mod[var], str(var.name_hint)
        if not hasattr(func, "buffer_map") and type(func).__name__ != "PrimFunc":
            return None, f"'{name}' is no PrimFunc"
        written = self._written(binding.var)
        return Call(unique(name, self.calls), func, (*tensors, *written), len(written), function=name), ""


def _operator(value: Any) -> str:
    """The name of the operator that an expression is a call of; '' of any other."""
    return str(getattr(getattr(value, "op", None), "name", ""))


def _elements(value: Any) -> tuple[str, int] | None:
    """Type and number of a tensor's elements; of a view they tell whether it is all of another tensor."""
    if not static_tensor(value):
        return None
    return str(value.ty.dtype), prod(int(e) for e in value.ty.shape.values)


def static_tensor(value: Any) -> bool:
    """Return whether an expression, or a type, is a tensor of known shape."""
    shape = getattr(getattr(value, "ty", value), "shape", None)
    return isinstance(shape, relax.ShapeExpr) and all(isinstance(e, tvm.tirx.IntImm) for e in shape.values)


def extents_of(value: Any) -> tuple[Any, ...] | None:
    """Return the extents of an expression's or a type's tensor, numbers and expressions of open ones; None without."""
    shape = getattr(getattr(value, "ty", value), "shape", None)
    if not isinstance(shape, relax.ShapeExpr):
        return None
    return tuple(int(e) if isinstance(e, tvm.tirx.IntImm) else e for e in shape.values)


def operator_name(value: Any) -> str:
    """Return the name of the operator that an expression calls; '' if it calls none."""
    return str(getattr(value.op, "name", "")) if isinstance(value, relax.Call) else ""


def name_of(binding: Any) -> str:
    """Return the name of a binding and of its callee, for a report."""
    arguments = list(getattr(binding.value, "args", []))
    first = arguments[0] if arguments else None
    hint = getattr(first, "name_hint", None) or getattr(first, "global_symbol", None)
    return f"{binding.var.name}" + (f" = {hint}" if hint else "")


def _width(var: Any) -> int:
    return len(var.ty.fields) if hasattr(var.ty, "fields") else 1


def used_variables(value: Any) -> Iterable[Any]:
    """Variables of an expression."""
    found: dict[int, Any] = {}

    def visit(node: Any) -> None:
        if isinstance(node, relax.Var):
            found.setdefault(key(node), node)

    relax.analysis.post_order_visit(value, visit)
    return found.values()


__all__ = ["Block", "Bound", "read_blocks", "static_tensor", "used_variables"]
