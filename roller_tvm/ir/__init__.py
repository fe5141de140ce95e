"""Tensor expressions and the data tiles that follow from them (no TVM)."""

from .affine import Index
from .expression import TensorExpression
from .footprint import box, common_box, distinct_sums, footprint
from .stage import REDUCE, SPATIAL, Access, Axis, Stage, Tensor, dtype_bytes

__all__ = ["REDUCE", "SPATIAL", "Access", "Axis", "Index", "Stage", "Tensor", "TensorExpression", "box", "common_box",
           "distinct_sums", "dtype_bytes", "footprint"]
