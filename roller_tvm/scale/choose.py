"""The axis of each operator with the least predicted time in all: computing, and sending what nodes lack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ..device import DeviceSpec
from .graph import Graph, Op, Way
from .placement import ROOT, WHOLE, Placement
from .times import Times

#: Placements of all live tensors that are kept after an operator.
WIDTH = 64

#: Tensor -> where it lies, in the order in which it came there.
Places = Mapping[str, tuple[Placement, ...]]


@dataclass(frozen=True)
class Move:
    """A tensor that an operator (by its number; that of the outputs is the number of operators) needs elsewhere."""

    before: int
    tensor: str
    source: Placement
    target: Placement


@dataclass(frozen=True)
class Choice:
    """The way of each operator, and the moves before them.

    Attributes
    ----------
    compute, network : float
        Predicted seconds of a run, one after the other.
    bytes_sent : int
        Bytes of all messages of a run.
    """

    nodes: int
    ways: tuple[Way, ...]
    moves: tuple[Move, ...]
    compute: float
    network: float
    bytes_sent: int

    @cached_property
    def seconds(self) -> float:
        return self.compute + self.network


@dataclass(frozen=True)
class _State:
    """A beginning of a choice."""

    places: Places
    ways: tuple[Way, ...] = ()
    moves: tuple[Move, ...] = ()
    compute: float = 0.0
    network: float = 0.0
    bytes_sent: int = 0
    first: Mapping[str, Placement] = field(default_factory=dict)  # of inputs that are states

    @property
    def rank(self) -> tuple[float, int]:
        return self.compute + self.network, self.bytes_sent

    @cached_property
    def key(self) -> frozenset[tuple[str, tuple[Placement, ...]]]:
        return frozenset(self.places.items())


class _Chooser:
    def __init__(self, graph: Graph, times: Times) -> None:
        self.graph, self.times = graph, times
        self.last = {name: number for number, op in enumerate(graph.ops) for name in op.inputs}
        self.last |= dict.fromkeys((*graph.outputs, *graph.states), len(graph.ops))

    def choose(self) -> Choice:
        states = [_State({name: () if name in self.graph.states else (WHOLE,) for name in self.graph.inputs})]
        for number, op in enumerate(self.graph.ops):
            found: dict[object, _State] = {}
            for state in states:
                for way in op.for_nodes(self.times.nodes):
                    made = self._take(state, number, op, way)
                    known = found.get(made.key)
                    if known is None or made.rank < known.rank:
                        found[made.key] = made
            states = sorted(found.values(), key=lambda s: s.rank)[:WIDTH]
        best = min((self._end(state) for state in states), key=lambda s: s.rank)
        return Choice(self.times.nodes, best.ways, best.moves, best.compute, best.network, best.bytes_sent)

    def _take(self, state: _State, number: int, op: Op, way: Way) -> _State:
        places, first = dict(state.places), dict(state.first)
        moves, network, sent = list(state.moves), state.network, state.bytes_sent
        for place, name in enumerate(op.inputs):
            if name and name not in self.graph.constants:
                more, size = self._bring(places, first, moves, number, name, way.needs(place))
                network, sent = network + more, sent + size
        for place, name in enumerate(op.outputs):
            if name in self.last:
                places[name] = (way.makes(place),)
        places = {name: there for name, there in places.items() if self.last.get(name, -1) > number}
        compute = state.compute + self.times.compute(op, way)
        return _State(places, (*state.ways, way), tuple(moves), compute, network, sent, first)

    def _bring(
        self, places: dict[str, tuple[Placement, ...]], first: dict[str, Placement], moves: list[Move], number: int,
        name: str, wanted: Placement,
    ) -> tuple[float, int]:  # fmt: skip
        """Bring a tensor to a placement; return the time and bytes that this takes."""
        there = places[name]
        if wanted in there or (wanted == ROOT and WHOLE in there):
            return 0.0, 0
        if not there:  # a state, which stays where it is needed first
            kept = wanted if wanted.window is None else Placement("split", wanted.dim)
            places[name], first[name] = (kept,), kept
            return self._bring(places, first, moves, number, name, wanted)
        # What a window reads overlaps: no source of anything else.
        sources = [p for p in there if p.window is None]
        source = min(sources, key=lambda p: self.times.move(name, p, wanted))
        moves.append(Move(number, name, source, wanted))
        rounds = self.times.rounds(name, source, wanted)
        places[name] = (*there, *(step.target for step in rounds if step.target not in there))
        return self.times.move(name, source, wanted), sum(step.bytes_sent for step in rounds)

    def _end(self, state: _State) -> _State:
        """Bring the outputs to node 0, and those that are states to where their inputs lie."""
        places, moves, first = dict(state.places), list(state.moves), dict(state.first)
        network, sent, end = state.network, state.bytes_sent, len(self.graph.ops)
        kept = {output: name for name, output in self.graph.states.items()}
        for name in self.graph.outputs:
            wanted = first.get(kept[name], WHOLE) if name in kept else ROOT
            if name in self.graph.constants:
                continue
            more, size = self._bring(places, first, moves, end, name, wanted)
            network, sent = network + more, sent + size
        return _State(places, state.ways, tuple(moves), state.compute, network, sent, first)


def choose(graph: Graph, device: DeviceSpec, nodes: int) -> Choice:
    """Return the way of each operator by which so many nodes are predicted to be done first."""
    return _Chooser(graph, Times(graph, device, nodes)).choose()


def choose_nodes(graph: Graph, device: DeviceSpec, most: int) -> list[Choice]:
    """Return the choice for 1, 2, 4, ... and `most` nodes."""
    counts = sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | {most})
    return [choose(graph, device, count) for count in counts]
