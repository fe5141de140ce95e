"""Tensor expressions and the data tiles that follow from them (no TVM)."""

from .affine import Index
from .expression import REDUCE, SPATIAL, Access, Axis, Stage, Tensor, TensorExpression, dtype_bytes
from .footprint import box, distinct_sums, footprint

__all__ = ["REDUCE", "SPATIAL", "Access", "Axis", "Index", "Stage", "Tensor", "TensorExpression", "box",
           "distinct_sums", "dtype_bytes", "footprint"]
