"""Pictures enlarged by linear interpolation: first along rows, then along columns, by two kernels.

At once, each element is made of four that are gathered. The first kernel gathers two for each element of a picture that
is not enlarged downwards yet; the second reads two rows from end to end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te
from tvm.topi.image.resize import get_inx

from ..tir.open_axes import number

#: TVM's kOpaque: FuseOps leaves such a kernel as it is, rather than compute it again for each element of the next.
OPAQUE = 8
#: Ways to number elements that depend on both sizes alone.
WAYS = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")


def stretched(data: Any, axis: int, size: int, way: str) -> Any:
    """Return a tensor of float32 whose axis has another size, by linear interpolation.

    Parameters
    ----------
    way : str
        A ``coordinate_transformation_mode`` of ``resize2d``, of `WAYS`.

    Examples
    --------
    >>> stretched(te.placeholder((1, 8, 4, 4)), 3, 10, "half_pixel").shape
    (1, 8, 4, 10)
    """
    old, new = data.shape[axis], te.const(size, "int32")

    def element(*at: Any) -> Any:
        place = get_inx(at[axis], old, new, way)
        first = te.floor(place)
        share = place - first

        def neighbour(step: int) -> Any:
            inside = te.max(te.min(first.astype("int32") + step, old - 1), 0)
            return data[(*at[:axis], inside, *at[axis + 1 :])]

        return neighbour(0) * (1.0 - share) + neighbour(1) * share

    return te.compute([*data.shape[:axis], size, *data.shape[axis + 1 :]], element, name="stretched")


def stretching_or(other: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the rule by which ``resize2d`` is legalized: along rows, then columns, where it can be; else `other`."""

    def rule(builder: Any, call: Any) -> Any:
        a, (data, size) = call.attrs, call.args[:2]
        shape, sizes = ([number(e) or 0 for e in getattr(x, "values", ())] for x in (data.ty.shape, size))
        known = a.layout == "NCHW" and a.method == "linear" and a.coordinate_transformation_mode in WAYS
        single = str(data.ty.dtype) == "float32" and a.out_dtype in (None, "float32")
        if not (known and single and all([shape, sizes, *shape, *sizes])) or sizes[0] < shape[2]:
            return other(builder, call)  # also where the second kernel would leave out rows of the first
        way = str(a.coordinate_transformation_mode)
        rows = builder.emit_te(
            stretched, data, 3, sizes[1], way, primfunc_name_hint="stretched", primfunc_attrs={"op_pattern": OPAQUE}
        )
        return builder.call_te(stretched, rows, 2, sizes[0], way, primfunc_name_hint="resize2d")

    return rule


__all__ = ["stretched", "stretching_or"]
