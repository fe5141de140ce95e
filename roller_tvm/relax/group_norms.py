"""GroupNorms: group normalisation as means of channels, which all cores compute, wherever the channels lie.

TVM's operator is one loop nest with a row for each group. A network that normalises whole images (PoolFormer: one
group) has one row, and so one core at work; and the operator knows images with their channels first alone, so that they
are rearranged before it and after it. ONNX's exporters write such a norm as InstanceNormalization of a view in which
groups are channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.dpl import is_const, is_op, wildcard

from .constants import array_of
from .dataflow import extents_of, operator_name, rewritten, static_tensor
from .dead_code import without_dead_code

#: Types whose sums TVM's operator keeps as they are.
_EXACT = ("float32", "float64")
#: First axis of an image.
_IMAGE = 2
_ALIKE = {"relax.add": relax.op.add, "relax.multiply": relax.op.multiply}
#: ONNX's importer's InstanceNormalization, its scale and shift left out.
_DATA, _EPSILON = wildcard(), is_const()
_MEAN, _VARIANCE = is_op("relax.mean")(_DATA), is_op("relax.variance")(_DATA)
_APART = is_op("relax.subtract")(_DATA, _MEAN)
_QUOTIENT = is_op("relax.divide")(_APART, is_op("relax.sqrt")(is_op("relax.add")(_VARIANCE, _EPSILON)))


@tvm.transform.module_pass(opt_level=0, name="GroupNorms")
class GroupNorms:
    """Write group and instance normalisations as means, differences and scales; functions that write in place stay.

    For CPUs, of known shapes, in float32 or float64. Put it before ``FoldScales`` and ``PlanLayout``.

    Examples
    --------
    >>> mod = GroupNorms()(mod)
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its functions rewritten."""
        result = rewritten(mod, _Rewriter)
        return result if result is mod else without_dead_code(result)


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        self.before: Any = None
        #: Variables of norms of which something reads a view.
        self.viewed: set[Any] = set()

    def visit_function_(self, op: Any) -> Any:
        if self.before is None:  # the outermost
            self.before = relax.analysis.get_var2val(op)
        return super().visit_function_(op)

    def visit_call_(self, op: Any) -> Any:
        name = operator_name(op)
        if name == "relax.divide" and (norm := self._instance_norm(op)) is not None:
            return norm
        op = super().visit_call_(op)
        if name == "relax.nn.group_norm":
            return self._group_norm(op)
        if name == "relax.reshape" and (norm := self._whole(op.args[0])) is not None:
            return norm if extents_of(norm) == extents_of(op) else op
        return self._of_all_alike(op, _ALIKE[name]) if name in _ALIKE else op

    def _group_norm(self, op: Any) -> Any:
        (x, *affine), a = op.args, op.attrs
        rank = len(extents_of(x) or ())
        if not _is_image(x) or int(a.channel_axis) % rank != 1 or not _of_images(a.axes, rank):
            return op
        gamma, beta = (part if wanted else None for part, wanted in zip(affine, (a.scale, a.center), strict=True))
        return self._norm(x, int(a.num_groups), float(a.epsilon), gamma, beta)

    def _instance_norm(self, op: Any) -> Any | None:
        """Return the quotient that ONNX's importer makes of InstanceNormalization as the norm that it is."""
        if (found := _QUOTIENT.extract_matched_expr(op, self.before)) is None:
            return None
        view, epsilon = found[_APART].args[0], array_of(found[_EPSILON])
        middle, spread = found[_MEAN].attrs, found[_VARIANCE].attrs
        rank = len(extents_of(view) or ())
        same = all(_of_images(a.axis, rank) and a.keepdims for a in (middle, spread))
        if not same or not _is_image(view) or epsilon is None or epsilon.size != 1:
            return None
        shape, value = extents_of(view) or (), self.before.get(view)
        x = value.args[0] if operator_name(value) == "relax.reshape" else view
        extents = extents_of(x) or ()
        if not _is_image(x) or extents[0] != shape[0] or extents[1] % shape[1]:
            return self._norm(self.visit_expr(view), shape[1], epsilon.item())
        norm = self._norm(self.visit_expr(x), shape[1], epsilon.item())
        if extents == shape:
            return norm
        self.viewed.add(norm := self.builder_.emit(norm))
        return relax.op.reshape(norm, shape)

    def _whole(self, view: Any) -> Any | None:
        """Return the norm of which a variable is a view."""
        value: Any = self.lookup_binding(view) if isinstance(view, relax.Var) else None
        return value.args[0] if operator_name(value) == "relax.reshape" and value.args[0] in self.viewed else None

    def _of_all_alike(self, op: Any, operator: Any) -> Any:
        """Scale or shift a norm by one number in the place of its view."""
        norm, factor = self._whole(op.args[0]), self._constant(op.args[1])
        if norm is None or factor is None or extents_of(op) != extents_of(op.args[0]):
            return op
        if (factor != (one := factor.flat[0])).any():
            return op
        self.viewed.add(made := self.builder_.emit(operator(norm, relax.const(one, op.ty.dtype))))
        return relax.op.reshape(made, extents_of(op))

    def _constant(self, node: Any) -> np.ndarray | None:
        """Return the elements of a constant, or of a view of one."""
        value = self.lookup_binding(node) if isinstance(node, relax.Var) else node
        return array_of(value.args[0] if operator_name(value) == "relax.reshape" else value)

    def _norm(self, x: Any, groups: int, epsilon: float, gamma: Any = None, beta: Any = None) -> Any:
        """Return the call that ends a norm of an image."""
        emit = self.builder_.emit
        rows, channels, *image = extents_of(x) or ()
        axes, ones = [*range(_IMAGE, _IMAGE + len(image))], [1] * len(image)

        def mean(value: Any) -> Any:
            """Return the mean of each channel's group, for each channel."""
            of_channels = emit(relax.op.mean(value, axes, keepdims=True))
            if groups == channels:
                return of_channels
            own = rows, groups, channels // groups
            of_groups = emit(relax.op.mean(emit(relax.op.reshape(of_channels, own)), [2], keepdims=True))
            return emit(relax.op.reshape(emit(relax.op.broadcast_to(of_groups, own)), (rows, channels, *ones)))

        middle = mean(x)
        apart, again = (emit(relax.op.subtract(x, middle)) for _ in range(2))  # each is part of its reader's kernel
        spread = emit(relax.op.add(mean(emit(relax.op.multiply(apart, apart))), relax.const(epsilon, x.ty.dtype)))
        scale = emit(relax.op.rsqrt(spread))
        gamma, beta = (part if part is None else emit(relax.op.reshape(part, (1, channels, *ones)))
                       for part in (gamma, beta))  # fmt: skip
        scale = scale if gamma is None else emit(relax.op.multiply(scale, gamma))
        result = relax.op.multiply(again, scale)
        return result if beta is None else relax.op.add(emit(result), beta)


def _is_image(x: Any) -> bool:
    """Return whether a tensor has rows, channels and at least an axis of pixels, of known extents and an exact type."""
    extents = extents_of(x) or ()
    return static_tensor(x) and str(x.ty.dtype) in _EXACT and len(extents) > _IMAGE and min(extents) > 0


def _of_images(axes: Any, rank: int) -> bool:
    """Return whether axes are all behind the channels."""
    return axes is not None and sorted(int(axis) % rank for axis in axes) == list(range(_IMAGE, rank))
