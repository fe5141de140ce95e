"""Level IV proven, by going through all nodes, messages and elements: matched, free of deadlock, each element once.

A node does its instructions in order. The proof takes a network that keeps nothing: a message is under way only when
its receiver has asked for it, and a round is finished only when all that its node sent and receives is through. A
program without deadlock there has none where messages are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from ..errors import WrongAnswer
from .program import COMPUTE, FINISH, RECEIVE, SEND, Instruction, Program


def refutations(program: Program) -> Iterator[str]:
    """Yield whatever is wrong with a program, each with a witness; nothing: it is proven."""
    yield from _unmatched(program)
    yield from _not_ready(program)
    yield from _stuck(program)
    for number in range(len(program.rounds)):
        yield from _misplaced(program, number)


def prove(program: Program) -> None:
    """Raise for a program that is not proven.

    Raises
    ------
    WrongAnswer
        The first refutation.
    """
    for told in refutations(program):
        raise WrongAnswer(f"its messages are wrong: {told}", program.name, "report it")


def _unmatched(program: Program) -> Iterator[str]:
    """Sends without their receives, receives without their sends, other bytes than the round's."""
    sent: Counter[tuple[int, int, int, int]] = Counter()
    received: Counter[tuple[int, int, int, int]] = Counter()
    for node, instructions in enumerate(program.instructions):
        for i in instructions:
            if i.kind == SEND:
                sent[i.number, node, i.peer, i.size] += 1
            elif i.kind == RECEIVE:
                received[i.number, i.peer, node, i.size] += 1
    planned = Counter(
        (number, p.source, p.target, p.elements * made.step.itemsize)
        for number, made in enumerate(program.rounds) for p in made.step.parts if p.sent
    )  # fmt: skip
    for what, found in (("sent", sent), ("received", received)):
        for (number, source, target, size), count in (found - planned).items():
            yield f"r{number}: {size} B from {source} to {target} are {what} {count} times more than planned"
        for (number, source, target, size), count in (planned - found).items():
            yield f"r{number}: {size} B from {source} to {target} are {what} {count} times less than planned"


def _not_ready(program: Program) -> Iterator[str]:
    """Buffers that are read before they are there, and outputs that never are."""
    for node, instructions in enumerate(program.instructions):
        there, finished = set(program.inputs.values()), set()
        for i in instructions:
            if i.kind in (SEND, RECEIVE) and i.number in finished:
                yield f"node {node}: {i} comes after the round is finished"
            if i.kind == COMPUTE:
                piece = program.pieces[i.number]
                yield from (f"node {node}: p{i.number} reads {b}, which is not there" for b in piece.inputs
                            if b not in there)  # fmt: skip
                there |= set(piece.outputs)
            elif i.kind in (SEND, FINISH):
                made = program.rounds[i.number]
                if made.source not in there:
                    yield f"node {node}: {i} takes {made.source}, which is not there"
                if i.kind == FINISH:
                    there.add(made.target)
                    finished.add(i.number)
        lacking = [name for name, buffer in program.outputs.items() if buffer not in there]
        yield from (f"node {node}: output {name} is never made" for name in lacking)


def _stuck(program: Program) -> Iterator[str]:
    """Nodes that wait for each other."""
    at = [0] * program.nodes
    asked: set[tuple[int, int, int]] = set()  # round, source, target
    given: set[tuple[int, int, int]] = set()
    moved = True
    while moved:
        moved = False
        for node, instructions in enumerate(program.instructions):
            while at[node] < len(instructions) and not _waits(program, node, at[node], asked, given):
                i = instructions[at[node]]
                if i.kind == RECEIVE:
                    asked.add((i.number, i.peer, node))
                elif i.kind == SEND:
                    given.add((i.number, node, i.peer))
                at[node] += 1
                moved = True
    for node, instructions in enumerate(program.instructions):
        if at[node] < len(instructions):
            message = _waits(program, node, at[node], asked, given)
            assert message is not None
            yield f"node {node} waits for ever at '{instructions[at[node]]}': {message}"


def _waits(
    program: Program, node: int, at: int, asked: set[tuple[int, int, int]], given: set[tuple[int, int, int]]
) -> str | None:
    """Return the message that an instruction waits for; None if it can be done."""
    i: Instruction = program.instructions[node][at]
    if i.kind != FINISH:
        return None
    for other in program.instructions[node][:at]:
        if other.number == i.number and other.kind == RECEIVE and (i.number, other.peer, node) not in given:
            return f"node {other.peer} has not sent r{i.number}"
        if other.number == i.number and other.kind == SEND and (i.number, node, other.peer) not in asked:
            return f"node {other.peer} has not asked for r{i.number}"
    return None


def _misplaced(program: Program, number: int) -> Iterator[str]:
    """Elements of a round's target that get no value, several, or that of another element."""
    made = program.rounds[number]
    step, addends = made.step, made.step.nodes if made.step.adds else 1
    for node in range(step.nodes):
        wanted = step.target.region(step.shape, step.nodes, node)
        if wanted is None:
            continue
        counts = np.zeros([high - low for low, high in wanted], np.int32)
        for part in step.parts:
            held = step.source.region(step.shape, step.nodes, part.source)
            if part.target != node or held is None:
                continue
            counts[tuple([slice(a, b) for a, b in part.to])] += 1
            for (a, b), (c, d), (start, end), (low, _) in zip(part.at, part.to, held, wanted, strict=True):
                if a + start != c + low or b - a != d - c or a < 0 or b > end - start:
                    yield f"r{number}: node {node} gets {part.at} of node {part.source} as {part.to}"
        inside = tuple([slice(max(low, 0) - low, min(high, n) - low) for (low, high), n
                        in zip(wanted, step.shape, strict=True)])  # fmt: skip
        wrong = np.argwhere(counts[inside] != addends)
        if len(wrong):
            yield f"r{number}: node {node} gets element {wrong[0].tolist()} {counts[inside][tuple(wrong[0])]} times"
        if counts.sum() != counts[inside].sum():
            yield f"r{number}: node {node} gets elements outside of the tensor"
