"""A node's share of a piece as an ONNX model: operators on parts of tensors, with the node's parts of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .lowering import EDGES, INNER, Local, Lowered
from .onnx_reader import Source
from .placement import Placement, Region, Window, inner_rows, share

#: Operators with a constant input that says the shape of the output.
SHAPED = {"Reshape": 1, "Expand": 1}


class _Piece:
    """The nodes and constants of one piece on one node."""

    def __init__(self, source: Source, lowered: Lowered, number: int, node: int) -> None:
        self.source, self.graph, self.program = source, source.graph, lowered.program
        self.piece, self.locals, self.node = self.program.pieces[number], lowered.pieces[number], node
        self.buffers = {b.name: b for b in lowered.buffers}
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def model(self) -> Any:
        from onnx import helper, numpy_helper

        for local in self.locals:
            if local.op < 0:
                self.take(local)
            elif local.part == INNER:
                self.inner(local)
            elif local.part == EDGES:
                self.edges(local)
            else:
                ins = [self.operand(local, place) for place in range(len(local.inputs))]
                self.add(local, ins, local.outputs)
        weights = [numpy_helper.from_array(np.ascontiguousarray(a), n) for n, a in self.constants.items()]
        ins, outs = ([self.info(name) for name in names] for names in (self.piece.inputs, self.piece.outputs))
        graph = helper.make_graph(self.nodes, "piece", ins, outs, weights)
        return helper.make_model(graph, opset_imports=self.source.opsets, ir_version=self.source.ir_version)

    def info(self, name: str) -> Any:
        from onnx import helper

        buffer = self.buffers[name]
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(buffer.dtype))
        return helper.make_tensor_value_info(name, kind, buffer.local_shape(self.program.nodes, self.node))

    def region(self, placement: Placement, shape: Sequence[int]) -> Region:
        found = placement.region(shape, self.program.nodes, self.node)
        assert found is not None
        return found

    def constant(self, array: Any, name: str = "") -> str:
        name = name or f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def operand(self, local: Local, place: int) -> str:
        """Return the name of an operand; of a constant this node's part."""
        name = local.inputs[place]
        if not name or name in self.buffers:
            return name
        assert local.way is not None
        placement = local.way.needs(place)
        array = self.graph.constants[name]
        cut = tuple([slice(low, high) for low, high in self.region(placement, array.shape)])
        return self.constant(array[cut], f"w{list(self.graph.values).index(name)}_{placement}")

    def add(self, local: Local, ins: Sequence[str], outs: Sequence[str]) -> None:
        """Add an operator, with what its attributes and constants say of extents."""
        import onnx
        from onnx import helper

        original = self.source.nodes[local.op]
        made = onnx.NodeProto()
        made.CopyFrom(original)
        del made.input[:], made.output[:]
        given = iter(outs)
        made.input.extend(ins)
        made.output.extend([next(given) if name else "" for name in original.output])
        way, kind = local.way, original.op_type
        assert way is not None
        if kind in SHAPED:
            shape = self.buffers[outs[0]].local_shape(self.program.nodes, self.node)
            made.input[SHAPED[kind]] = self.constant(np.array(shape, np.int64))
        changed: dict[str, Any] = {}
        attributes = {a.name: helper.get_attribute_value(a) for a in original.attribute}
        if way.window is not None and way.ins[0] is not None:
            spatial = len(self.graph.values[self.graph.ops[local.op].inputs[0]].shape) - 2
            pads = list(attributes.get("pads") or [0] * 2 * spatial)
            pads[way.ins[0] - 2] = pads[way.ins[0] - 2 + spatial] = 0
            changed = {"pads": pads, "auto_pad": "NOTSET"}
        if kind == "Conv" and attributes.get("group", 1) > 1 and way.axis == "c":
            low, high = share(way.extent, self.program.nodes, self.node)
            changed["group"] = high - low
        for name, value in changed.items():
            for old in [a for a in made.attribute if a.name == name]:
                made.attribute.remove(old)
            made.attribute.append(helper.make_attribute(name, value))
        self.nodes.append(made)

    def cut(self, name: str, dim: int, low: int, high: int) -> str:
        """Return a part of a tensor along a dimension."""
        from onnx import helper

        made = f"{name}_{dim}_{low}_{high}"
        bounds = [self.constant(np.array([n], np.int64)) for n in (low, high, dim)]
        self.nodes.append(helper.make_node("Slice", [name, *bounds], [made]))
        return made

    def take(self, local: Local) -> None:
        """Take a node's part of a tensor on this node, with zeros for the parts of windows over the edge."""
        from onnx import helper

        name = local.inputs[0]
        held, made = self.buffers[name], self.buffers[local.outputs[0]]
        own, wanted = (self.region(b.placement, b.shape) for b in (held, made))
        pads = [0] * 2 * len(wanted)
        for dim, ((start, end), (low, high)) in enumerate(zip(own, wanted, strict=True)):
            inside = max(low, start), min(high, end)
            if inside != (start, end):
                name = self.cut(name, dim, inside[0] - start, inside[1] - start)
            pads[dim], pads[dim + len(wanted)] = inside[0] - low, high - inside[1]
        if any(pads):
            ends = self.constant(np.array(pads, np.int64))
            self.nodes.append(helper.make_node("Pad", [name, ends], [local.outputs[0]]))
        else:
            self.nodes.append(helper.make_node("Identity", [name], [local.outputs[0]]))

    def rows(self, local: Local, held: str, start: int, low: int, high: int, out: str) -> str:
        """Add the operator for its outputs from `low` to `high`; `held` begins with element `start`."""
        assert local.way is not None and local.way.window is not None and local.way.ins[0] is not None
        first, last = local.way.window.reads(low, high)
        part = self.cut(held, local.way.ins[0], first - start, last - start)
        count = len(self.graph.ops[local.op].inputs)
        self.add(local, [part, *(self.operand(local, place) for place in range(1, count))], [out])
        return out

    def window(self, local: Local) -> tuple[Window, int, int]:
        """Return the window of a local, the dimension that it goes along, and the extent of that."""
        assert local.way is not None and local.way.window is not None and local.way.ins[0] is not None
        dim = local.way.ins[0]
        return local.way.window, dim, self.graph.values[self.graph.ops[local.op].inputs[0]].shape[dim]

    def inner(self, local: Local) -> None:
        window, _, extent = self.window(local)
        low, high = inner_rows(window, extent, self.program.nodes, self.node)
        start, _ = share(extent, self.program.nodes, self.node)
        self.rows(local, local.inputs[0], start, low, high, local.outputs[0])

    def edges(self, local: Local) -> None:
        from onnx import helper

        window, dim, extent = self.window(local)
        low, high = share(window.out, self.program.nodes, self.node)
        first, last = inner_rows(window, extent, self.program.nodes, self.node)
        held, inner = local.inputs[0], local.inputs[-1]
        start = window.reads(low, high)[0]
        parts = [inner]
        if low < first:
            parts.insert(0, self.rows(local, held, start, low, first, f"{local.outputs[0]}_low"))
        if last < high:
            parts.append(self.rows(local, held, start, last, high, f"{local.outputs[0]}_high"))
        self.nodes.append(helper.make_node("Concat", parts, local.outputs, axis=dim))


def piece_model(source: Source, lowered: Lowered, number: int, node: int) -> Any:
    """Return a node's share of a piece as an ONNX model."""
    return _Piece(source, lowered, number, node).model()
