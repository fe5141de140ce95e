"""Placements of a tensor: whole on each node, split along a dimension, as addends, or on one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import RollerError

#: From the first element to behind the last, of each dimension; what lies outside of the tensor is zero.
Region = tuple[tuple[int, int], ...]

KINDS = ("whole", "split", "sum", "root")


def share(extent: int, nodes: int, node: int) -> tuple[int, int]:
    """Return the part of an extent that a node has; parts differ by one at most.

    Examples
    --------
    >>> [share(10, 4, node) for node in range(4)]
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    return node * extent // nodes, (node + 1) * extent // nodes


@dataclass(frozen=True)
class Window:
    """Elements that an output along one axis reads: of a convolution, say.

    Attributes
    ----------
    out : int
        Outputs along the axis.
    size, stride, dilation, before : int
        Taps, their distance, the distance of windows, and the padding before the first element.

    Examples
    --------
    >>> Window(out=8, size=3, stride=1, dilation=1, before=1).reads(0, 4)
    (-1, 5)
    """

    out: int
    size: int
    stride: int
    dilation: int
    before: int

    def reads(self, low: int, high: int) -> tuple[int, int]:
        """Return the elements that the outputs from `low` to `high` read."""
        start = low * self.stride - self.before
        return start, (high - 1) * self.stride - self.before + (self.size - 1) * self.dilation + 1


def inner_rows(window: Window, extent: int, nodes: int, node: int) -> tuple[int, int]:
    """Return the outputs of a node that read nothing but the node's own elements, of `extent` in all.

    Examples
    --------
    >>> inner_rows(Window(out=8, size=3, stride=1, dilation=1, before=1), 8, nodes=2, node=1)
    (5, 7)
    """
    low, high = share(window.out, nodes, node)
    start, end = share(extent, nodes, node)
    first = max(low, -(-(start + window.before) // window.stride))
    last = (end - 1 - (window.size - 1) * window.dilation + window.before) // window.stride + 1
    return first, max(first, min(high, last))


@dataclass(frozen=True)
class Placement:
    """The elements of a tensor that a node has.

    Attributes
    ----------
    kind : str
        'whole', 'split', 'sum' (each node has an addend of every element) or 'root' (all of it on node 0).
    dim : int
        Of a split.
    window : Window, optional
        A node has what its share of the outputs reads: elements of its neighbours, and zeros outside of the tensor.

    Examples
    --------
    >>> Placement("split", 1).region((4, 8), nodes=2, node=1)
    ((0, 4), (4, 8))
    """

    kind: str
    dim: int = -1
    window: Window | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS or (self.kind == "split") != (self.dim >= 0):
            raise RollerError(f"no placement: {self.kind!r} of dimension {self.dim}", "placement")

    def region(self, shape: Sequence[int], nodes: int, node: int) -> Region | None:
        """Return the elements that a node has, None for none."""
        if self.kind == "root" and node > 0:
            return None
        region = [(0, extent) for extent in shape]
        if self.kind == "split":
            if self.window is not None:
                region[self.dim] = self.window.reads(*share(self.window.out, nodes, node))
            else:
                region[self.dim] = share(shape[self.dim], nodes, node)
        return tuple(region)

    def local_shape(self, shape: Sequence[int], nodes: int, node: int) -> tuple[int, ...]:
        """Return the extents of a node's buffer."""
        region = self.region(shape, nodes, node)
        return tuple(high - low for low, high in region) if region is not None else (0,) * len(shape)

    def __str__(self) -> str:
        if self.kind != "split":
            return self.kind
        if self.window is None:
            return f"split{self.dim}"
        w = self.window
        return f"window{self.dim}_{w.out}_{w.size}_{w.stride}_{w.dilation}_{w.before}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Placement:
        return cls(data["kind"], data["dim"], Window(**data["window"]) if data["window"] else None)


WHOLE, SUM, ROOT = Placement("whole"), Placement("sum"), Placement("root")


def split(dim: int) -> Placement:
    """Return the placement in equal parts along a dimension."""
    return Placement("split", dim)
