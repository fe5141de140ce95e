"""Converters of our own in TVM 0.17's ONNX importer, also within subgraphs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..errors import UnsupportedOperator
from ..recurrences.cell import GATES
from ..recurrences.graph import onnx_outputs
from ..recurrences.onnx import PLACES
from .recurrent import RelayGraph

#: Attributes that TVM's converters of recurrences do not read or misread; those of these values they leave out rightly.
_MISREAD = {"direction": ("forward", "bidirectional"), "clip": (0.0,), "input_forget": (0,), "layout": (0,)}

Converter = Callable[[Any, dict[str, Any], Any], Any]


@contextlib.contextmanager
def own_operators() -> Iterator[None]:
    """Read LSTM, GRU and RNN as one operator each while this is open.

    Examples
    --------
    >>> import onnx
    >>> with own_operators():
    ...     mod, params = tvm.relay.frontend.from_onnx(onnx.load("model.onnx"))
    """
    from tvm.relay.frontend import onnx

    original = onnx._get_convert_map

    def converters(opset: int) -> dict[str, Converter]:
        found = original(opset)
        return {**found, **{kind: _recurrent(kind, found[kind]) for kind in GATES}}

    onnx._get_convert_map = converters
    try:
        yield
    finally:
        onnx._get_convert_map = original


def _recurrent(kind: str, theirs: Converter) -> Converter:
    """Return the converter of a kind; of what has no kernel `theirs` writes the steps out, if it reads it."""
    from tvm import relay

    def convert(inputs: Any, attributes: dict[str, Any], params: Any) -> Any:
        given = [inputs[at] for at in range(len(PLACES))]
        try:
            made = onnx_outputs(RelayGraph(), kind, given, attributes)
        except UnsupportedOperator:
            if given[PLACES["sequence_lens"]] is not None or not _read_by_tvm(attributes):
                raise
            return theirs(inputs, attributes, params)
        return relay.expr.TupleWrapper(relay.Tuple(made), len(made))

    return convert


def _read_by_tvm(attributes: Mapping[str, Any]) -> bool:
    def plain(value: Any) -> Any:
        return value.decode() if isinstance(value, bytes) else value

    return all(plain(attributes.get(name, right[0])) in right for name, right in _MISREAD.items())
