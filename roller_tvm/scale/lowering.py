"""From the ways of the operators to level IV: pieces between messages, and messages under way while a node computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from .choose import Choice
from .graph import Graph, Op, Way
from .moves import Step
from .placement import ROOT, WHOLE, Placement, Window, inner_rows, share
from .program import (
    COMPUTE,
    FINISH,
    RECEIVE,
    SEND,
    Buffer,
    Instruction,
    Piece,
    Predicted,
    Program,
    Round,
)
from .times import Times

#: Parts of an operator with a window: all, what needs no neighbour's elements, the rest and both put together.
ALL, INNER, EDGES = "", "inner", "edges"


@dataclass(frozen=True)
class Local:
    """Something that a node does alone: an operator or a part of it, or (no operator) elements taken from a buffer.

    Attributes
    ----------
    op : int
        Number of the operator, -1 for none.
    inputs, outputs : tuple of str
        Buffers; constants by their names in the model; '' for an input that is left out.
    """

    op: int
    way: Way | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    part: str = ALL


@dataclass(frozen=True)
class Lowered:
    """A program, what stands in each of its pieces, and all buffers, those within pieces too."""

    program: Program
    pieces: tuple[tuple[Local, ...], ...]
    buffers: tuple[Buffer, ...]


class _Lowering:
    """Buffers, what is done with them, and after how many rounds each is there."""

    def __init__(self, graph: Graph, times: Times, choice: Choice) -> None:
        self.graph, self.times, self.choice = graph, times, choice
        self.nodes = choice.nodes
        self.numbers = {name: n for n, name in enumerate(graph.values)}
        self.buffers: dict[str, Buffer] = {}
        self.stage: dict[str, int] = {}
        self.after_round: set[str] = set()
        self.locals: list[tuple[int, Local]] = []
        self.rounds: list[Round] = []

    def buffer(self, tensor: str, placement: Placement, inner: tuple[Window, int] | None = None) -> str:
        name = f"t{self.numbers[tensor]}_{placement}{'_inner' if inner else ''}"
        value = self.graph.values[tensor]
        self.buffers.setdefault(name, Buffer(name, tensor, value.shape, value.dtype, placement, inner))
        return name

    def do(self, local: Local) -> None:
        stage = max((self.stage.get(name, 0) for name in local.inputs), default=0)
        self.locals.append((stage, local))
        self.stage.update(dict.fromkeys(local.outputs, stage))

    def move(self, tensor: str, source: Placement, target: Placement) -> None:
        for step in self.times.rounds(tensor, source, target):
            a, b = self.buffer(tensor, step.source), self.buffer(tensor, step.target)
            if b in self.stage:
                continue
            if not step.bytes_sent and not step.adds:
                self.do(Local(-1, None, (a,), (b,)))
                continue
            self.rounds.append(Round(a, b, step))
            self.stage[b] = self.stage[a] + (a not in self.after_round)
            self.after_round.add(b)

    def compute(self, number: int, op: Op, way: Way) -> None:
        ins = []
        for place, name in enumerate(op.inputs):
            kept = not name or name in self.graph.constants
            ins.append(name if kept else self.buffer(name, way.needs(place)))
        outs = [self.buffer(name, way.makes(place)) for place, name in enumerate(op.outputs)]
        if (own := self.inner(op, way, ins)) is not None:
            assert way.window is not None and way.ins[0] is not None
            extent = self.graph.values[op.inputs[0]].shape[way.ins[0]]
            part = self.buffer(op.outputs[0], way.makes(0), (way.window, extent))
            self.do(Local(number, way, (own, *ins[1:]), (part,), INNER))
            self.do(Local(number, way, (*ins, part), tuple(outs), EDGES))
        else:
            self.do(Local(number, way, tuple(ins), tuple(outs)))

    def inner(self, op: Op, way: Way, ins: list[str]) -> str | None:
        """Return the buffer from which the inner rows are computed while the halo is under way, if that pays."""
        made = next((r for r in self.rounds if r.target == ins[0]), None)
        if way.window is None or made is None or made.source in self.after_round or way.ins[0] is None:
            return None
        dim, window = way.ins[0], way.window
        extent = self.graph.values[op.inputs[0]].shape[dim]
        rows = [inner_rows(window, extent, self.nodes, node) for node in range(self.nodes)]
        if any(low >= high for low, high in rows):
            return None
        whole, messages = self.times.compute(op, way), self.times.network.seconds(*made.step.busiest)
        inside, edge = (self.rows(op, way, dim, count) for count in self.counts(window, rows))
        return made.source if max(messages, inside) + edge < messages + whole else None

    def counts(self, window: Window, rows: list[tuple[int, int]]) -> tuple[int, int]:
        """Return the most inner rows of a node, and the most others."""
        shares = [share(window.out, self.nodes, node) for node in range(self.nodes)]
        others = max((high - low) - (b - a) for (low, high), (a, b) in zip(shares, rows, strict=True))
        return max(b - a for a, b in rows), max(others, 1)

    def rows(self, op: Op, way: Way, dim: int, count: int) -> float:
        """Return the time of a part of so many rows."""
        window = way.window
        assert window is not None
        ins = [self.graph.values[name].shape if name else () for name in op.inputs]
        outs = [self.graph.values[name].shape for name in op.outputs]
        low, high = window.reads(0, count)
        ins[0] = (*ins[0][:dim], high - low, *ins[0][dim + 1 :])
        outs = [(*shape[:dim], count, *shape[dim + 1 :]) for shape in outs]
        return self.times.of_shapes(op, tuple(ins), tuple(outs))


def lower(graph: Graph, times: Times, choice: Choice) -> Lowered:
    """Return the program of a choice."""
    made = _Lowering(graph, times, choice)
    inputs = {}
    for name in graph.inputs:
        at = next((m.source for m in choice.moves if m.tensor == name), None)
        if at is None:
            at = next((w.needs(op.inputs.index(name)) for op, w in zip(graph.ops, choice.ways, strict=True)
                       if name in op.inputs), WHOLE)  # fmt: skip
        inputs[name] = made.buffer(name, at)
        made.stage[inputs[name]] = 0
    moves = list(choice.moves)
    for number, (op, way) in enumerate(zip(graph.ops, choice.ways, strict=True)):
        while moves and moves[0].before == number:
            one = moves.pop(0)
            made.move(one.tensor, one.source, one.target)
        made.compute(number, op, way)
    for one in moves:
        made.move(one.tensor, one.source, one.target)
    outputs = {}
    for name in graph.outputs:
        kept = inputs_of(graph, name, inputs)
        wanted = made.buffer(name, made.buffers[kept].placement if kept else ROOT)
        outputs[name] = wanted if wanted in made.stage else made.buffer(name, WHOLE)
    return _ordered(made, inputs, outputs)


def inputs_of(graph: Graph, output: str, inputs: Mapping[str, str]) -> str | None:
    """Return the buffer of the input that gets an output's value for the next run."""
    return next((inputs[name] for name, made in graph.states.items() if made == output), None)


def _ordered(made: _Lowering, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> Lowered:
    """Put pieces and rounds in order: what is sent is computed first, and what is needed last is awaited last."""
    pieces: list[tuple[Local, ...]] = []
    order: list[tuple[str, int]] = []
    finished: set[int] = set()
    wanted = set(outputs.values())
    seconds = network = compute = 0.0

    def finish(names: Iterable[str]) -> None:
        for number in [n for n, r in enumerate(made.rounds) if r.target in names and n not in finished]:
            finish([made.rounds[number].source])
            if number not in started:
                start(number)
            order.append((FINISH, number))
            finished.add(number)

    started: set[int] = set()

    def start(number: int) -> None:
        started.add(number)
        order.append((SEND, number))

    def add(group: list[Local]) -> None:
        if group:
            finish({name for local in group for name in local.inputs})
            pieces.append(tuple(group))
            order.append((COMPUTE, len(pieces) - 1))

    for stage in range(max([s for s, _ in made.locals], default=0) + 1):
        group = [local for s, local in made.locals if s == stage]
        rounds = [n for n, r in enumerate(made.rounds) if made.stage[r.source] == stage
                  and r.source not in made.after_round]  # fmt: skip
        first, rest = _apart(group, {made.rounds[n].source for n in rounds})
        busy = sum(made.times.network.seconds(*made.rounds[n].step.busiest) for n in _chains(made, rounds))
        after = sum(_seconds(made, local) for local in rest)
        before = sum(_seconds(made, local) for local in first)
        compute, network = compute + before + after, network + busy
        if first and rest and min(busy, after) <= made.times.device.launch_overhead_us * 1e-6:
            first, rest, before, after = group, [], before + after, 0.0
        seconds += before + max(busy, after)
        add(first)
        for number in rounds:
            start(number)
        add(rest)
    finish(wanted)
    sent = sum(r.step.bytes_sent for r in made.rounds)
    predicted = Predicted(made.nodes, seconds, compute, network, sent)
    program = Program(
        made.graph.name, made.nodes, tuple(made.buffers.values()),
        tuple([_piece(made, group, wanted, n, pieces) for n, group in enumerate(pieces)]), tuple(made.rounds),
        tuple([_of_node(made, order, node) for node in range(made.nodes)]), inputs, outputs, made.graph.states,
        tuple([(op.name, way.axis) for op, way in zip(made.graph.ops, made.choice.ways, strict=True)]),
        tuple([(op.name, tile) for op, way in zip(made.graph.ops, made.choice.ways, strict=True)
               if (tile := made.times.tile(op, way)) is not None]), (predicted,),
    )  # fmt: skip
    kept = {b for p in program.pieces for b in (*p.inputs, *p.outputs)}
    kept |= {b for r in program.rounds for b in (r.source, r.target)} | {*inputs.values(), *outputs.values()}
    told = replace(program, buffers=tuple([b for b in program.buffers if b.name in kept]))
    return Lowered(told, tuple(pieces), program.buffers)


def _apart(group: list[Local], sources: set[str]) -> tuple[list[Local], list[Local]]:
    """Return what the messages need, and the rest."""
    needed = set(sources)
    first = []
    for local in reversed(group):
        if needed & set(local.outputs):
            needed |= set(local.inputs)
            first.append(local)
    chosen = {id(local) for local in first}
    return first[::-1], [local for local in group if id(local) not in chosen]


def _chains(made: _Lowering, rounds: list[int]) -> list[int]:
    """Return rounds and those that go on with their results at once."""
    found = list(rounds)
    for number in found:
        found += [n for n, r in enumerate(made.rounds) if r.source == made.rounds[number].target and n not in found]
    return found


def _seconds(made: _Lowering, local: Local) -> float:
    if local.op < 0 or local.way is None:
        return 0.0
    op, way = made.graph.ops[local.op], local.way
    if local.part == ALL or way.window is None or way.ins[0] is None:
        return made.times.compute(op, way)
    dim = way.ins[0]
    extent = made.graph.values[op.inputs[0]].shape[dim]
    rows = [inner_rows(way.window, extent, made.nodes, node) for node in range(made.nodes)]
    inside, edges = made.counts(way.window, rows)
    return made.rows(op, way, dim, inside if local.part == INNER else edges)


def _piece(made: _Lowering, group: tuple[Local, ...], wanted: set[str], number: int,
           pieces: list[tuple[Local, ...]]) -> Piece:  # fmt: skip
    inside = {name for local in group for name in local.outputs}
    read = dict.fromkeys(name for local in group for name in local.inputs if name in made.buffers)
    later = {name for other in pieces[:number] + pieces[number + 1 :] for local in other for name in local.inputs}
    later |= {r.source for r in made.rounds} | wanted
    ops = tuple([made.graph.ops[local.op].name for local in group if local.op >= 0])
    outputs = tuple([n for n in inside_order(group) if n in later])
    return Piece(tuple([n for n in read if n not in inside]), outputs, ops)


def inside_order(group: Iterable[Local]) -> list[str]:
    """Return the buffers that a piece makes, in order."""
    return list(dict.fromkeys(name for local in group for name in local.outputs))


def _of_node(made: _Lowering, order: list[tuple[str, int]], node: int) -> tuple[Instruction, ...]:
    found: list[Instruction] = []
    for kind, number in order:
        if kind != SEND:
            found.append(Instruction(kind, number))
            continue
        step: Step = made.rounds[number].step
        for part in step.parts:
            if part.sent and part.target == node:
                found.append(Instruction(RECEIVE, number, part.source, part.elements * step.itemsize))
        for part in step.parts:
            if part.sent and part.source == node:
                found.append(Instruction(SEND, number, part.target, part.elements * step.itemsize))
    return tuple(found)
