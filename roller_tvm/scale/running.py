"""Level IV carried out by one rank: pieces computed, parts sent and received, bytes held against the plan's."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import WrongAnswer
from .moves import Part
from .mpi import Ranks
from .placement import Region
from .program import COMPUTE, FINISH, RECEIVE, SEND, Instruction, Program

if TYPE_CHECKING:
    from ..models.package import LoadedModel


@dataclass(frozen=True)
class Event:
    """An instruction as it was carried out.

    Attributes
    ----------
    instruction : Instruction
    start, seconds : float
    under_way : int
        Messages that this rank had started and not finished when it began.
    """

    instruction: Instruction
    start: float
    seconds: float
    under_way: int


class Node:
    """The part of a model that one rank computes, with its states.

    Parameters
    ----------
    program : Program
    pieces : sequence of LoadedModel
    ranks : Ranks
    """

    def __init__(self, program: Program, pieces: Sequence[LoadedModel], ranks: Ranks) -> None:
        self.program, self.pieces, self.ranks = program, pieces, ranks
        self.buffers: dict[str, Any] = {}
        self.known = {b.name: b for b in program.buffers}
        self.events: list[Event] = []
        self.started = False
        self.runs = 0
        # Of each round its parts by their other end.
        mine = ranks.rank
        self.sends = [{p.target: p for p in r.step.parts if p.sent and p.source == mine} for r in program.rounds]
        self.parts = [[p for p in r.step.parts if p.target == mine] for r in program.rounds]
        self.kept: list[tuple[int, Any]] = []

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Run once; states are taken from `inputs` in the first run alone. Node 0 returns the outputs by name."""
        for name, buffer in self.program.inputs.items():
            if name not in self.program.states or not self.started:
                region = self.known[buffer].placement.region(self.known[buffer].shape, self.program.nodes,
                                                             self.ranks.rank)  # fmt: skip
                assert region is not None
                self.buffers[buffer] = np.ascontiguousarray(inputs[name][_slices(region)])
        self.started, self.events = True, []
        pending: dict[int, list[tuple[int, Any]]] = {}
        arrays: dict[tuple[int, int], Any] = {}
        for i in self.program.instructions[self.ranks.rank]:
            start = time.perf_counter()
            under_way = len(self.kept) + sum(map(len, pending.values()))
            if i.kind == COMPUTE:
                self._compute(i.number)
            elif i.kind == RECEIVE:
                part = next(p for p in self.parts[i.number] if p.source == i.peer)
                made = self.program.rounds[i.number]
                array = np.empty([b - a for a, b in part.at], self.known[made.source].dtype)
                arrays[i.number, i.peer] = array
                pending.setdefault(i.number, []).append((i.peer, self.ranks.receive(array, i.peer, i.number)))
            elif i.kind == SEND:
                part = self.sends[i.number][i.peer]
                array = self.buffers[self.program.rounds[i.number].source][_slices(part.at)]
                self.kept.append((i.peer, self.ranks.send(array, i.peer, i.number)))
            elif i.kind == FINISH:
                self.ranks.wait(pending.pop(i.number, []), f"round {i.number}")
                self._finish(i.number, arrays)
            self.events.append(Event(i, start, time.perf_counter() - start, under_way))
        self.ranks.wait(self.kept, "sending", received=False)
        self.kept = []
        self.runs += 1
        for name, output in self.program.states.items():
            self.buffers[self.program.inputs[name]] = self.buffers[self.program.outputs[output]]
        return self._outputs()

    def _compute(self, number: int) -> None:
        piece = self.program.pieces[number]
        made = self.pieces[number].run({name: self.buffers[name] for name in piece.inputs})
        self.buffers.update(zip(piece.outputs, made, strict=True))

    def _finish(self, number: int, arrays: dict[tuple[int, int], Any]) -> None:
        made = self.program.rounds[number]
        target = self.known[made.target]
        if made.step.target.region(target.shape, self.program.nodes, self.ranks.rank) is None:
            return
        whole = np.zeros(target.local_shape(self.program.nodes, self.ranks.rank), target.dtype)
        for part in self.parts[number]:
            array = self._part(number, part, arrays)
            if made.step.adds:
                whole[_slices(part.to)] += array
            else:
                whole[_slices(part.to)] = array
        self.buffers[made.target] = whole

    def _part(self, number: int, part: Part, arrays: dict[tuple[int, int], Any]) -> Any:
        if part.sent:
            return arrays.pop((number, part.source))
        return self.buffers[self.program.rounds[number].source][_slices(part.at)]

    def _outputs(self) -> dict[str, Any] | None:
        if self.ranks.rank > 0:
            return None
        states = set(self.program.states.values())
        return {name: self.buffers[b] for name, b in self.program.outputs.items() if name not in states}

    def check_bytes(self) -> int:
        """Hold the bytes that all ranks sent and received against the plan's; return those of one run.

        Raises
        ------
        WrongAnswer
        """
        told = self.ranks.told({"sent": self.ranks.sent, "received": self.ranks.received})
        planned = self.program.bytes_sent * self.runs
        for what in ("sent", "received"):
            counted = sum(one[what] for one in told)
            if counted != planned:
                raise WrongAnswer(f"{counted} bytes were {what}, {planned} are planned", self.program.name, "report it")
        return self.program.bytes_sent


def _slices(region: Region) -> tuple[slice, ...]:
    return tuple([slice(low, high) for low, high in region])
