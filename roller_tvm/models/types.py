"""Types of a model's values as ONNX itself infers them, from the graph without its weights. Needs the onnx package."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Elements up to which a constant stays in the graph: shapes, axes and scales, which inference reads.
SMALL = 1024
#: Domain of nodes whose output inference must not guess.
UNKNOWN = "roller.unknown"
#: ONNX's element types that numpy and TVM have under one name.
NUMBERS = (
    "FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32",
    "UINT64",
)  # fmt: skip


@dataclass(frozen=True)
class TensorType:
    """Dtype and shape of one value, as far as they are known.

    Parameters
    ----------
    shape : tuple of (int or None), or None
        None for an unknown extent, or for an unknown rank.
    dtype : str
        numpy's name; empty if unknown.
    """

    shape: tuple[int | None, ...] | None
    dtype: str

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype} of unknown rank".strip()
        return f"{self.dtype} [{', '.join('?' if e is None else str(e) for e in self.shape)}]".strip()

    @property
    def elements(self) -> int | None:
        """Number of elements; None if an extent is unknown."""
        if self.shape is None or None in self.shape:
            return None
        return math.prod(e for e in self.shape if e is not None)

    def contradicts(self, other: TensorType) -> bool:
        """Return True if both types know a rank, an extent or a dtype, and these differ."""
        if self.dtype and other.dtype and self.dtype != other.dtype:
            return True
        if self.shape is None or other.shape is None:
            return False
        if len(self.shape) != len(other.shape):
            return True
        return any(a != b for a, b in zip(self.shape, other.shape, strict=True) if a is not None and b is not None)


def inferred_types(model: Any, shapes: Mapping[str, tuple[int | str, ...]]) -> dict[str, TensorType]:
    """Return the type of every value that ONNX's shape inference knows, by name.

    Parameters
    ----------
    model : onnx.ModelProto
        Read only; large weights are not copied.
    shapes : mapping of input name to shape
        As ``input_shapes`` gives them; they replace those of the file.

    Returns
    -------
    dict
        Empty if ONNX cannot infer anything, say of a model with an unknown IR version.
    """
    import onnx

    try:
        graph = onnx.shape_inference.infer_shapes(_without_weights(model, shapes), data_prop=True).graph
    except Exception:  # C++ errors of several kinds; a model that inference cannot read is judged by the importer
        return {}
    values = [*graph.input, *graph.value_info, *graph.output]
    return {value.name: of_value(value) for value in values if value.type.HasField("tensor_type")}


def of_value(value: Any) -> TensorType:
    """Return the type written in an ``onnx.ValueInfoProto``."""
    kind = value.type.tensor_type
    shape = None
    if kind.HasField("shape"):
        shape = tuple(d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim)
    return TensorType(shape, dtype_name(kind.elem_type))


def dtype_name(number: int) -> str:
    """Return numpy's name of ONNX's element type; empty for strings, types under a byte and unknown ones.

    Examples
    --------
    >>> dtype_name(1), dtype_name(8)
    ('float32', '')
    """
    import onnx

    if number not in [getattr(onnx.TensorProto, name) for name in NUMBERS]:
        return ""
    return str(onnx.helper.tensor_dtype_to_np_dtype(number))


def opset_of(model: Any) -> int:
    """Return the version of ONNX's own operators that a model uses."""
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)


def weight_bytes(model: Any) -> int:
    """Return the size of a model's weights in bytes."""
    return sum(math.prod(w.dims) * element_bytes(w.data_type) for w in model.graph.initializer)


def element_bytes(number: int) -> int:
    """Return the size of an element of ONNX's type in bytes; 1 for those that ``dtype_name`` does not name."""
    import onnx

    return int(onnx.helper.tensor_dtype_to_np_dtype(number).itemsize) if dtype_name(number) else 1


def _without_weights(model: Any, shapes: Mapping[str, tuple[int | str, ...]]) -> Any:
    """Return a copy of a model with these input shapes, its large constants as inputs, its stored types dropped."""
    import onnx

    new = onnx.ModelProto(ir_version=model.ir_version)
    new.opset_import.extend([*model.opset_import, onnx.helper.make_opsetid(UNKNOWN, 1)])
    new.functions.extend(model.functions)
    graph = new.graph
    graph.name = model.graph.name or "graph"
    for value in model.graph.input:
        copied = graph.input.add()
        copied.CopyFrom(value)
        if value.name in shapes:
            dims = copied.type.tensor_type.shape
            dims.ClearField("dim")
            for extent in shapes[value.name]:
                dims.dim.add(**{"dim_value" if isinstance(extent, int) else "dim_param": extent})
    given = {value.name for value in model.graph.input}

    def as_input(name: str, tensor: Any) -> None:
        if name not in given:
            graph.input.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))

    for weight in model.graph.initializer:
        if math.prod(weight.dims) > SMALL:
            as_input(weight.name, weight)
        else:
            graph.initializer.append(weight)
    for node in model.graph.node:
        if opset_of(model) < 22 and any(a.name == "ceil_mode" and a.i for a in node.attribute):
            # Inference counts a last window that lies in the padding, which the operator's text leaves out.
            graph.node.add(op_type=node.op_type, domain=UNKNOWN, input=node.input, output=node.output)
            continue
        large = [a.t for a in node.attribute if a.name == "value" and math.prod(a.t.dims) > SMALL]
        if node.op_type == "Constant" and large:
            as_input(node.output[0], large[0])
        else:
            graph.node.append(node)
    for value in model.graph.output:
        graph.output.add(name=value.name)
    return new
