"""MovedParts: parts of a tensor that is moved are moved one by one, each on the way to its own reader.

Attention writes queries, keys and values as one tensor, permutes it, and takes three parts of it; keys are turned once
more. FuseOps makes no kernel of operators between which a tensor has several readers: the whole is written, then each
part again. Here each part has the permutation to itself, and is one kernel with all that follows it. A split becomes
such parts too: its readers take them as they read.
"""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm import relax

from .constants import array_of
from .dataflow import extents_of, operator_name, rewritten, static_tensor
from .dead_code import without_dead_code

#: Operators that give each element of their result one element of their argument.
_MOVES = ("relax.reshape", "relax.permute_dims", "relax.expand_dims", "relax.squeeze")
_PART, _SPLIT, _TOGETHER = "relax.strided_slice", "relax.split", "relax.concat"


@tvm.transform.module_pass(opt_level=0, name="MovedParts")
class MovedParts:
    """Move parts of tensors one by one; functions that write in place or branch stay.

    Only where each reader of what is moved takes a part, and the parts are no more than the whole. A ``take`` of one
    known index and an element of a ``split`` become such parts. Put it before ``LegalizeOps``, after constants are
    folded.

    Examples
    --------
    >>> mod = MovedParts()(mod)
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its functions rewritten."""
        sliced = rewritten(mod, _Slices)
        return without_dead_code(rewritten(without_dead_code(sliced), _Apart))


@relax.expr_functor.mutator
class _Slices(relax.PyExprMutator):
    """Makes slices of a ``take`` of one index, and of the parts of a ``split``.

    A split of a concatenation, moved or not, stays if all its parts are read: both are one kernel.
    """

    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        self._taken: dict[Any, set[int]] | None = None

    def visit_function_(self, op: Any) -> Any:
        if self._taken is None:  # the outermost
            self._taken = {}
            relax.analysis.post_order_visit(op, self._note)
        return super().visit_function_(op)

    def _note(self, node: Any) -> None:
        if isinstance(node, relax.TupleGetItem) and self._taken is not None:
            self._taken.setdefault(node.tuple_value, set()).add(node.index)

    def visit_call_(self, op: Any) -> Any:
        op = super().visit_call_(op)
        if operator_name(op) != "relax.take" or op.attrs.axis is None:
            return op
        index, shape = array_of(op.args[1]), extents_of(op.args[0])
        if index is None or index.ndim or shape is None or not static_tensor(op.args[0]):
            return op
        axis, at = int(op.attrs.axis) % len(shape), int(index)
        if not 0 <= at < shape[axis]:
            return op
        part = self.builder_.emit(relax.op.strided_slice(op.args[0], [axis], [at], [at + 1]))
        return relax.op.squeeze(part, [axis])

    def visit_tuple_getitem_(self, op: Any) -> Any:
        taken = (self._taken or {}).get(op.tuple_value, ())
        op = super().visit_tuple_getitem_(op)
        split = self._made(op.tuple_value)
        if operator_name(split) != _SPLIT or (shape := extents_of(split.args[0])) is None:
            return op
        source = self._made(split.args[0])
        while operator_name(source) in _MOVES:
            source = self._made(source.args[0])
        if operator_name(source) == _TOGETHER and len(taken) == len(split.ty.fields):
            return op
        axis = int(split.attrs.axis) % len(shape)
        sizes = [(extents_of(field) or shape)[axis] for field in split.ty.fields]
        if not all(isinstance(size, int) for size in [shape[axis], *sizes]) or sum(sizes) != shape[axis]:
            return op  # of an open extent, or not in order
        first = sum(sizes[: op.index])
        return relax.op.strided_slice(split.args[0], [axis], [first], [first + sizes[op.index]])

    def _made(self, var: Any) -> Any:
        """Return what a variable is bound to, or None."""
        return self.lookup_binding(var) if isinstance(var, relax.Var) else None


@relax.expr_functor.visitor
class _Readers(relax.PyExprVisitor):
    """The calls that read each variable, and what each is bound to; `None` among the readers for any other use."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: dict[Any, list[Any]] = {}
        self.bound: dict[Any, Any] = {}
        self.branches = False
        self._call: Any = None

    def visit_var_binding_(self, binding: Any) -> None:
        self.bound[binding.var] = binding.value
        self._call = binding.value if isinstance(binding.value, relax.Call) else None
        self.visit_expr(binding.value)
        self._call = None

    def visit_if_(self, op: Any) -> None:
        self.branches = True

    def visit_var_(self, op: Any) -> None:
        self.readers.setdefault(op, []).append(self._call)

    def visit_dataflow_var_(self, op: Any) -> None:
        self.visit_var_(op)


@relax.expr_functor.mutator
class _Apart(relax.PyExprMutator):
    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        self._read = _Readers()
        self._known = False

    def visit_function_(self, op: Any) -> Any:
        if not self._known:  # the outermost: what is inside of others reads its variables too
            self._read.visit_expr(op)
            self._known = True
        return super().visit_function_(op)

    def visit_call_(self, op: Any) -> Any:
        if operator_name(op) == _PART and op.args and self._in_parts(op.args[0]):
            moved = self._moved(op.args[0], True)
            return relax.Call(op.op, [moved, *map(self.visit_expr, op.args[1:])], op.attrs, op.ty_args)
        return super().visit_call_(op)

    def _in_parts(self, whole: Any) -> bool:
        """Return whether all readers of what a call moves take parts, which are no more than the whole."""
        readers = self._read.readers.get(whole, [])
        if self._read.branches or not self._moves(whole) or len(readers) < 2:
            return False
        if any(operator_name(reader) != _PART for reader in readers):
            return False
        every = (*readers, whole)
        if not all(map(static_tensor, every)):
            return False
        *parts, full = (prod(extents_of(one) or ()) for one in every)
        return sum(parts) <= full

    def _moves(self, var: Any) -> bool:
        return operator_name(self._read.bound.get(var)) in _MOVES

    def _moved(self, var: Any, first: bool) -> Any:
        """Return what is moved, by calls of its own up to what moves nothing or has other readers."""
        if not self._moves(var) or not first and len(self._read.readers.get(var, [])) > 1:
            return self.visit_expr(var)
        call = self._read.bound[var]
        arguments = [self._moved(call.args[0], False), *map(self.visit_expr, call.args[1:])]
        return self.builder_.emit(relax.Call(call.op, arguments, call.attrs, call.ty_args))
