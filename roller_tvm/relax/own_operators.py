"""TVM's ONNX importer with converters of our own for operators that it lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from ..recurrences.cell import GATES
from ..recurrences.graph import onnx_outputs
from .recurrent import RelaxGraph


def _recurrent(kind: str) -> Any:
    def converted(bb: Any, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
        return relax.Tuple(onnx_outputs(RelaxGraph(bb), kind, inputs, attributes))

    return converted


#: Operator of ONNX -> function of (builder, inputs, attributes) to a Relax expression.
OWN: dict[str, Callable[[Any, Sequence[Any], dict[str, Any]], Any]] = {
    kind: _recurrent(kind) for kind in sorted(GATES)
}


class OwnImporter(ONNXGraphImporter):
    """Importer that knows the operators of `OWN` too.

    Examples
    --------
    >>> sorted(OWN)
    ['GRU', 'LSTM', 'RNN']
    """

    def _check_for_unsupported_ops(self, graph: Any) -> None:
        others = type(graph)()
        others.node.extend(node for node in graph.node if node.op_type not in OWN)
        super()._check_for_unsupported_ops(others)

    def _convert_operator(self, op_name: str, inputs: Sequence[Any], attrs: dict[str, Any], opset: int) -> Any:
        if op_name in OWN:
            return self.bb.normalize(OWN[op_name](self.bb, inputs, attrs))
        return super()._convert_operator(op_name, inputs, attrs, opset)
