"""GroupedProducts: heads that share keys and values multiply them as one, and no head gets a copy of its own.

In grouped-query attention (Llama) four heads, say, read the same keys. Models say so by copies: the keys are repeated
four times, and each head has its product. Here the rows of the four heads are the rows of one product by the keys as
they are. A step of decoding, of one row a head, reads a fourth of the memory and writes no copy of its past.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from ..codegen.flat import number_of
from ..tir.nodes import analyzer_of_tvm
from .constants import array_of
from .dataflow import extents_of, operator_name, rewritten
from .dead_code import without_dead_code

_VIEWS = ("relax.reshape", "relax.expand_dims", "relax.squeeze")
#: Operators that may stand between a copy and its product, with a number as their second argument.
_BY_A_NUMBER = ("relax.add", "relax.subtract", "relax.multiply", "relax.divide")


@tvm.transform.module_pass(opt_level=0, name="GroupedProducts")
class GroupedProducts:
    """Multiply by what an axis repeats as it is; functions that write in place stay.

    Products of as many rows as columns are summed up, or more, stay too: a copy takes little of their time, and what
    follows them is computed with them. Put it before ``LegalizeOps``.

    Examples
    --------
    >>> mod = GroupedProducts()(mod)
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its functions rewritten."""
        made = rewritten(mod, _Rewriter)
        return mod if made is mod else without_dead_code(made)


@dataclass(frozen=True)
class _Repeated:
    """A tensor in which each element along an axis stands so many times, one after the other.

    Parameters
    ----------
    value : relax.Var
        The tensor with each element once.
    """

    value: Any
    axis: int
    times: int


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def visit_call_(self, op: Any) -> Any:
        op = super().visit_call_(op)
        if operator_name(op) != "relax.matmul":
            return op
        left, right = (extents_of(arg) for arg in op.args)
        if left is None or right is None or len(left) != len(right) or len(left) < 3:
            return op
        *outer, heads, rows, terms = left
        if not _same(left[:-2], right[:-2]) or _at_least(rows, terms):
            return op
        found, many = self._repeated(op.args[1]), number_of(heads)
        if found is None or many is None or found.axis != len(left) - 3:
            return op
        groups = many // found.times
        together = self.builder_.emit(relax.op.reshape(op.args[0], [*outer, groups, rows * found.times, terms]))
        product = self.builder_.emit(relax.op.matmul(together, found.value, op.attrs.out_dtype or None))
        return relax.op.reshape(product, [*outer, heads, rows, right[-1]])

    def _repeated(self, expr: Any) -> _Repeated | None:
        """Return what a tensor repeats; None if it repeats nothing, or in a way that is not known."""
        call = self.lookup_binding(expr) if isinstance(expr, relax.Var) else expr
        name = operator_name(call)
        if not name or not call.args or (shape := extents_of(call)) is None:
            return None
        before = extents_of(call.args[0])
        if before is None:
            return None
        if name == "relax.broadcast_to":
            return _copied(call.args[0], before, shape)
        if name not in (*_VIEWS, *_BY_A_NUMBER, "relax.permute_dims"):
            return None
        if name in _BY_A_NUMBER and not _is_number(call.args[1]):
            return None
        found = self._repeated(call.args[0])
        if found is None:
            return None
        if name in _BY_A_NUMBER:
            value = self.builder_.emit(relax.Call(call.op, [found.value, call.args[1]]))
            return _Repeated(value, found.axis, found.times)
        if name in _VIEWS:
            return self._seen(found, before, shape)
        axes = call.attrs.axes
        order = [int(a) for a in axes] if axes is not None else list(reversed(range(len(before))))
        value = self.builder_.emit(relax.op.permute_dims(found.value, order))
        return _Repeated(value, order.index(found.axis), found.times)

    def _seen(self, found: _Repeated, before: Sequence[Any], shape: Sequence[Any]) -> _Repeated | None:
        """Return a repeating tensor in another shape whose dimensions behind the repeated axis stay."""
        behind = len(before) - found.axis - 1
        at = len(shape) - behind - 1
        extent = number_of(shape[at]) if at >= 0 else None
        if extent is None or extent % found.times or not _same(shape[at + 1 :], before[found.axis + 1 :]):
            return None
        once = [*shape[:at], extent // found.times, *shape[at + 1 :]]
        return _Repeated(self._reshaped(found.value, once), at, found.times)

    def _reshaped(self, value: Any, shape: Sequence[Any]) -> Any:
        """Return a tensor in another shape: a view of what it is a view of, as TVM knows one view at a time."""
        while isinstance(value, relax.Var) and operator_name(call := self.lookup_binding(value)) in _VIEWS:
            value = call.args[0]
        return value if _same(extents_of(value) or (), shape) else self.builder_.emit(relax.op.reshape(value, shape))


def _copied(value: Any, before: Sequence[Any], shape: Sequence[Any]) -> _Repeated | None:
    """Return a broadcast along one axis."""
    if len(before) != len(shape):
        return None
    longer = [axis for axis, (a, b) in enumerate(zip(before, shape, strict=True)) if not _same((a,), (b,))]
    times = number_of(shape[longer[0]]) if len(longer) == 1 else None
    if times is None or times < 2 or number_of(before[longer[0]]) != 1:
        return None
    return _Repeated(value, longer[0], times)


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    analyzer = analyzer_of_tvm()
    return len(some) == len(others) and all(analyzer.can_prove_equal(a, b) for a, b in zip(some, others, strict=True))


def _at_least(rows: Any, terms: Any) -> bool:
    return bool(analyzer_of_tvm().can_prove(rows >= terms))


def _is_number(expr: Any) -> bool:
    value = array_of(expr)
    return value is not None and value.size == 1 and value.ndim <= 1
