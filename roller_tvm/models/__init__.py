"""Model files for both of TVM's lines: input shapes, ONNX files, and checks of their import. Imports no TVM."""

from __future__ import annotations

from ..errors import last_line
from .onnx_file import input_shapes, opsets, read_onnx, unsupported
from .shapes import Shapes, existing, parse_shapes

__all__ = ["Shapes", "existing", "input_shapes", "last_line", "opsets", "parse_shapes", "read_onnx", "unsupported"]
