"""Level IV: what each node computes, sends and receives, in order. Values that go through JSON without loss."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import BadInput
from ..roller.rtile import RTile
from .moves import Step
from .placement import Placement, Window, inner_rows

FORMAT_VERSION = 2
COMPUTE, SEND, RECEIVE, FINISH = KINDS = ("compute", "send", "receive", "finish")


@dataclass(frozen=True)
class Buffer:
    """A tensor in one placement, of which each node has its part.

    Attributes
    ----------
    name : str
    tensor : str
        Its name in the model.
    shape : tuple of int
        Of the whole tensor.
    dtype : str
    placement : Placement
    inner : (Window, int), optional
        It has, of the split dimension, only those outputs of a window over so many elements that need no neighbour's.
    """

    name: str
    tensor: str
    shape: tuple[int, ...]
    dtype: str
    placement: Placement
    inner: tuple[Window, int] | None = None

    def local_shape(self, nodes: int, node: int) -> tuple[int, ...]:
        """Return the extents of a node's part."""
        shape = list(self.placement.local_shape(self.shape, nodes, node))
        if self.inner is not None:
            low, high = inner_rows(*self.inner, nodes, node)
            shape[self.placement.dim] = high - low
        return tuple(shape)

    def to_json(self) -> dict[str, Any]:
        inner = [vars(self.inner[0]), self.inner[1]] if self.inner is not None else None
        return {**vars(self), "shape": list(self.shape), "placement": self.placement.to_json(), "inner": inner}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Buffer:
        inner = (Window(**data["inner"][0]), int(data["inner"][1])) if data["inner"] else None
        place = Placement.from_json(data["placement"])
        return cls(data["name"], data["tensor"], tuple(data["shape"]), data["dtype"], place, inner)


@dataclass(frozen=True)
class Piece:
    """Operators that a node computes without a message between them."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ops: tuple[str, ...]


@dataclass(frozen=True)
class Round:
    """Messages that make one buffer of another."""

    source: str
    target: str
    step: Step


@dataclass(frozen=True)
class Instruction:
    """One instruction of a node.

    Attributes
    ----------
    kind : str
        'compute' a piece; 'send' or 'receive' the part of a round, without waiting; 'finish' a round: wait for what is
        received, and put its target together.
    number : int
        Of the piece or the round.
    peer, size : int
        The other node of a message, and its bytes.
    """

    kind: str
    number: int
    peer: int = -1
    size: int = 0

    def __str__(self) -> str:
        if self.kind in (SEND, RECEIVE):
            return f"{self.kind} r{self.number} {'to' if self.kind == SEND else 'from'} {self.peer}: {self.size} B"
        return f"{self.kind} {'p' if self.kind == COMPUTE else 'r'}{self.number}"


@dataclass(frozen=True)
class Predicted:
    """The model's prediction of a run on so many nodes; nobody has measured it.

    Attributes
    ----------
    seconds : float
        Of a run, with messages under way while a node computes.
    compute, network : float
        Computing, and messages one after the other.
    bytes_sent : int
    """

    nodes: int
    seconds: float
    compute: float
    network: float
    bytes_sent: int


@dataclass(frozen=True)
class Program:
    """The program of all nodes.

    Attributes
    ----------
    nodes : int
    buffers, pieces, rounds : tuple
    instructions : tuple of tuple of Instruction
        Of each node.
    inputs, outputs : mapping of the model's name to buffer
    states : mapping of input to output
    ways : tuple of (operator, axis)
    tiles : tuple of (operator, RTile)
        The part of a node, of operators with a tensor expression.
    predicted : tuple of Predicted
        The first is that of this program, the others of other numbers of nodes.

    Examples
    --------
    >>> program = Program("model", 1, (), (), (), ((),), {}, {})
    >>> Program.from_json(program.to_json()) == program
    True
    """

    name: str
    nodes: int
    buffers: tuple[Buffer, ...]
    pieces: tuple[Piece, ...]
    rounds: tuple[Round, ...]
    instructions: tuple[tuple[Instruction, ...], ...]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    states: Mapping[str, str] = field(default_factory=dict)
    ways: tuple[tuple[str, str], ...] = ()
    tiles: tuple[tuple[str, RTile], ...] = ()
    predicted: tuple[Predicted, ...] = ()

    def buffer(self, name: str) -> Buffer:
        """Return the buffer of a name."""
        return next(b for b in self.buffers if b.name == name)

    @property
    def bytes_sent(self) -> int:
        """Bytes of all messages of one run."""
        return sum(i.size for node in self.instructions for i in node if i.kind == SEND)

    def to_json(self) -> str:
        """Return JSON text."""
        data = {
            "format": FORMAT_VERSION, "name": self.name, "nodes": self.nodes,
            "buffers": [b.to_json() for b in self.buffers],
            "pieces": [[list(p.inputs), list(p.outputs), list(p.ops)] for p in self.pieces],
            "rounds": [[r.source, r.target, r.step.to_json()] for r in self.rounds],
            "instructions": [[[i.kind, i.number, i.peer, i.size] for i in node] for node in self.instructions],
            "inputs": dict(self.inputs), "outputs": dict(self.outputs), "states": dict(self.states),
            "ways": [list(way) for way in self.ways],
            "tiles": [[op, tile.to_json()] for op, tile in self.tiles], "predicted": [vars(p) for p in self.predicted],
        }  # fmt: skip
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str, where: str = "program") -> Program:
        """Return the program that `to_json` wrote.

        Raises
        ------
        BadInput
            It is no such text.
        """
        remedy = "compile the model again"
        try:
            data = json.loads(text)
            if data["format"] != FORMAT_VERSION:
                told = f"is of format {data['format']!r}, this version reads {FORMAT_VERSION}"
                raise BadInput(told, where, remedy)
            return cls(
                data["name"], data["nodes"],
                tuple([Buffer.from_json(b) for b in data["buffers"]]),
                tuple([Piece(tuple(i), tuple(o), tuple(n)) for i, o, n in data["pieces"]]),
                tuple([Round(a, b, Step.from_json(s)) for a, b, s in data["rounds"]]),
                tuple([tuple([Instruction(*i) for i in node]) for node in data["instructions"]]),
                data["inputs"], data["outputs"], data["states"], tuple([(o, a) for o, a in data["ways"]]),
                tuple([(o, RTile.from_json(t)) for o, t in data["tiles"]]),
                tuple([Predicted(**p) for p in data["predicted"]]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadInput(f"is no program: {error}", where, remedy) from error

    def __str__(self) -> str:
        lines = [f"{self.name} on {self.nodes} nodes: {self.bytes_sent} bytes sent a run"]
        axes = {axis for _, axis in self.ways if axis}
        lines += [f"  shared along {axis}: {_names(self.ways, axis)}" for axis in sorted(axes)]
        lines += [f"  rTile of {op}: {tile}" for op, tile in self.tiles]
        for number, made in enumerate(self.rounds):
            of = self.buffer(made.source)
            lines.append(f"  r{number}: {of.tensor} {list(of.shape)} from {of.placement} to "
                         f"{made.step.target}{' (added up)' if made.step.adds else ''}, {made.step.bytes_sent} B")
        return "\n".join([*lines, *table(self.predicted, self.nodes)])

    def listing(self, node: int) -> str:
        """Return the instructions of a node, one a line."""
        return "\n".join(map(str, self.instructions[node]))


def _names(ways: Sequence[tuple[str, str]], axis: str) -> str:
    names = [op for op, along in ways if along == axis]
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def table(predicted: Sequence[Predicted], built: int) -> list[str]:
    """Return the lines of a table of predictions."""
    if not predicted:
        return []
    lines = [f"  {'nodes':>7} {'predicted':>12} {'computing':>12} {'messages':>12} {'bytes sent':>12}"]
    for p in sorted(predicted, key=lambda p: p.nodes):
        mark = "  <- this program" if p.nodes == built else ""
        times = " ".join(f"{f'{s * 1e6:.1f} us':>12}" for s in (p.seconds, p.compute, p.network))
        lines.append(f"  {p.nodes:>7} {times} {p.bytes_sent:>12}{mark}")
    return [*lines, "  predicted by the model from the device file, not measured"]
