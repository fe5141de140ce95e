"""From one placement of a tensor to another: the parts that nodes send each other, no byte more than they lack."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .placement import Placement, Region, split


@dataclass(frozen=True)
class Part:
    """Elements that go from one node's buffer to another's, or within a node's memory.

    Attributes
    ----------
    source, target : int
        Nodes.
    at, to : Region
        Where the elements lie in the buffer of the source, and in that of the target.
    """

    source: int
    target: int
    at: Region
    to: Region

    @property
    def elements(self) -> int:
        return math.prod(high - low for low, high in self.at)

    @property
    def sent(self) -> bool:
        """True if it goes over the network."""
        return self.source != self.target

    def to_json(self) -> list[Any]:
        return [self.source, self.target, [list(p) for p in self.at], [list(p) for p in self.to]]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> Part:
        return cls(data[0], data[1], tuple([(a, b) for a, b in data[2]]), tuple([(a, b) for a, b in data[3]]))


@dataclass(frozen=True)
class Step:
    """One round of messages: each part is sent at once, and received without waiting for another part.

    Attributes
    ----------
    source, target : Placement
    shape : tuple of int
        Of the whole tensor.
    nodes, itemsize : int

    Examples
    --------
    >>> from roller_tvm.scale.placement import SUM, WHOLE, split
    >>> Step(split(0), WHOLE, (8, 4), nodes=4, itemsize=4).bytes_sent    # to gather: 3 times the tensor
    384
    """

    source: Placement
    target: Placement
    shape: tuple[int, ...]
    nodes: int
    itemsize: int

    @property
    def adds(self) -> bool:
        """True if the parts that reach an element are added up, in the order of the nodes."""
        return self.source.kind == "sum"

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        return tuple(self._parts())

    def _parts(self) -> Iterator[Part]:
        for target in range(self.nodes):
            needed = self.target.region(self.shape, self.nodes, target)
            if needed is None:
                continue
            inside = tuple([(max(low, 0), min(high, n)) for (low, high), n in zip(needed, self.shape, strict=True)])
            for source in self._sources(target, inside):
                held = self.source.region(self.shape, self.nodes, source)
                both = _both(held, inside) if held is not None else None
                if held is not None and both is not None:
                    yield Part(source, target, _within(both, held), _within(both, needed))

    def _sources(self, target: int, inside: Region) -> Sequence[int]:
        """Return the nodes that a node gets its elements from: itself where it has all."""
        own = self.source.region(self.shape, self.nodes, target)
        if not self.adds and own is not None and _both(own, inside) == inside:
            return (target,)
        return range(self.nodes) if self.source.kind != "root" else (0,)

    @cached_property
    def bytes_sent(self) -> int:
        """Bytes of all messages."""
        return sum(p.elements for p in self.parts if p.sent) * self.itemsize

    @cached_property
    def busiest(self) -> tuple[int, int]:
        """Messages and bytes of the node that sends or receives most."""
        load = [[[0, 0], [0, 0]] for _ in range(self.nodes)]
        for part in self.parts:
            if part.sent:
                for node, way in ((part.source, 0), (part.target, 1)):
                    load[node][way][0] += 1
                    load[node][way][1] += part.elements * self.itemsize
        ways = [way for node in load for way in node]
        return max(w[0] for w in ways), max(w[1] for w in ways)

    def to_json(self) -> dict[str, Any]:
        return {"source": self.source.to_json(), "target": self.target.to_json(), "shape": list(self.shape),
                "nodes": self.nodes, "itemsize": self.itemsize}  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Step:
        source, target = (Placement.from_json(data[key]) for key in ("source", "target"))
        return cls(source, target, tuple(data["shape"]), data["nodes"], data["itemsize"])


def steps(source: Placement, target: Placement, shape: tuple[int, ...], nodes: int, itemsize: int) -> tuple[Step, ...]:
    """Return the rounds from one placement to another: addends are added up in shares before these are spread.

    Examples
    --------
    >>> from roller_tvm.scale.placement import SUM, WHOLE
    >>> [str(step.target) for step in steps(SUM, WHOLE, (2, 8), nodes=4, itemsize=4)]
    ['split1', 'whole']
    """
    if source == target:
        return ()
    if source.kind != "sum" or target.kind == "root":
        return (Step(source, target, shape, nodes, itemsize),)
    if target.kind == "split" and target.window is None:
        return (Step(source, target, shape, nodes, itemsize),)
    dim = target.dim if target.kind == "split" else max(range(len(shape)), key=lambda d: shape[d], default=-1)
    if dim < 0:  # a number: each node adds it up
        return (Step(source, target, shape, nodes, itemsize),)
    parts = split(dim)
    return (Step(source, parts, shape, nodes, itemsize), Step(parts, target, shape, nodes, itemsize))


def least_bytes(source: Placement, target: Placement, shape: tuple[int, ...], nodes: int, itemsize: int) -> int:
    """Return the least bytes that any way from one placement to another sends.

    A node gets at least the elements that it lacks. Of addends an element has one on each node: to add them up at one
    place takes a message for each of the others (nodes - 1 of them), and to have the sum on all nodes as many again.
    """
    lacking = 0
    for node in range(nodes):
        needed = target.region(shape, nodes, node)
        if needed is None:
            continue
        inside = tuple([(max(low, 0), min(high, n)) for (low, high), n in zip(needed, shape, strict=True)])
        own = source.region(shape, nodes, node)
        both = _both(own, inside) if own is not None and source.kind != "sum" else None
        lacking += _elements(inside) - (_elements(both) if both is not None else 0)
    if source.kind == "sum":
        # What is needed is got from where it was added up: one place has it already.
        elements = math.prod(shape)
        return ((nodes - 1) * elements + lacking - elements) * itemsize
    return lacking * itemsize


def _elements(region: Region) -> int:
    return math.prod(high - low for low, high in region)


def _both(one: Region, other: Region) -> Region | None:
    found = tuple([(max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True)])
    return found if all(low < high for low, high in found) else None


def _within(region: Region, buffer: Region) -> Region:
    return tuple([(low - start, high - start) for (low, high), (start, _) in zip(region, buffer, strict=True)])
