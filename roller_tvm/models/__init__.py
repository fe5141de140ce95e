"""Model files as both of TVM's lines read them: input shapes as users write them, ONNX. Imports no TVM."""

from __future__ import annotations

from ..errors import last_line
from .onnx_file import input_shapes, opsets, read_onnx, unsupported
from .shapes import Shapes, existing, parse_shapes

__all__ = [
    "Shapes",
    "existing",
    "input_shapes",
    "last_line",
    "opsets",
    "parse_shapes",
    "read_onnx",
    "unsupported",
]
