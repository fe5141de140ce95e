"""An imported model's output types held against one run of onnxruntime, if it is installed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import last_line
from .agreement import check_outputs
from .arguments import Signature
from .onnx_file import Onnx
from .types import TensorType, weight_bytes

#: Size of a model's weights in bytes up to which onnxruntime runs it at import.
LARGEST = 1 << 30
#: Elements of a tensor up to which it does.
MOST_ELEMENTS = 1 << 28
SEED = 0


def check_against_onnxruntime(onnx: Onnx, inputs: Signature, got: list[TensorType | None]) -> str:
    """Compare the dtypes and shapes of a module's outputs with those that onnxruntime gives on random inputs.

    Values are not compared: ``roller-tvm run --expect`` does that.

    Parameters
    ----------
    inputs : Signature
        In the order of the file.
    got : list of (TensorType or None)
        Outputs of the module, in the order of the file.

    Returns
    -------
    str
        Note why nothing was compared; empty if it was.

    Raises
    ------
    UnsupportedOperator
        Naming the first output that differs, with both types.
    """
    if any(isinstance(extent, str) for shape, _ in inputs.values() for extent in shape):
        return "not compared with onnxruntime: an input has an open shape"
    if weight_bytes(onnx.model) > LARGEST:
        return f"not compared with onnxruntime: its weights are above {LARGEST >> 20} MiB"
    if any((kind.elements or 0) > MOST_ELEMENTS for kind in onnx.known.values()):
        return f"not compared with onnxruntime: a tensor has more than {MOST_ELEMENTS} elements"
    try:
        import onnxruntime
    except ImportError:
        return ""
    try:
        outputs = _run(onnxruntime, onnx.path, inputs)
    except Exception as error:  # onnxruntime's errors have no common base
        return f"not compared with onnxruntime, which cannot run it: {last_line(error)}"
    arrays = zip(onnx.outputs, outputs, strict=True)
    expected = {name: TensorType(a.shape, str(a.dtype)) for name, a in arrays if isinstance(a, np.ndarray)}
    check_outputs(onnx, expected, got, f"onnxruntime {onnxruntime.__version__}")
    return ""


def _run(onnxruntime: Any, path: Path, inputs: Signature) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(SEED)
    return list(session.run(None, {name: _values(rng, shape, dtype) for name, (shape, dtype) in inputs.items()}))


def _values(rng: np.random.Generator, shape: tuple[int | str, ...], dtype: str) -> Any:
    """Return random values: below 1 for floats, 0 or 1 for integers (which may be indices)."""
    extents = [int(e) for e in shape]
    if np.issubdtype(np.dtype(dtype), np.floating):
        return rng.random(extents).astype(dtype)
    return rng.integers(0, 2, math.prod(extents)).reshape(extents).astype(dtype)
