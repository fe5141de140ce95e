"""Level IV: what is wrong with a program is found, whatever it is."""

import random
from dataclasses import replace

import pytest

from roller_tvm.errors import WrongAnswer
from roller_tvm.scale.program import COMPUTE, FINISH, RECEIVE, SEND
from roller_tvm.scale.proof import prove, refutations
from tests.scale import models
from tests.scale.kit import forced, lowered


def programs():
    yield lowered(models.block(), 3)[1].program
    yield forced(models.convolutions(64, 16), 4, {"a": "h", "b": "dim2", "c": "h", "y": "dim2"})[1].program


def changed(program, node, instructions):
    nodes = list(program.instructions)
    nodes[node] = tuple(instructions)
    return replace(program, instructions=tuple(nodes))


def mutants(program, rng):
    """Name and program of each mutant: an instruction dropped, given twice, moved or changed."""
    for node, instructions in enumerate(program.instructions):
        for at, one in enumerate(instructions):
            rest = [*instructions[:at], *instructions[at + 1 :]]
            yield f"{one} of node {node} dropped", changed(program, node, rest)
            if one.kind in (SEND, RECEIVE):
                yield f"{one} of node {node} twice", changed(program, node, [*rest[:at], one, one, *rest[at:]])
                other = replace(one, size=one.size + 4)
                yield f"{one} of node {node}: {other.size}", changed(program, node, [*rest[:at], other, *rest[at:]])
                other = replace(one, peer=(one.peer + 1) % program.nodes)
                yield f"{one} of node {node}: to {other.peer}", changed(program, node, [*rest[:at], other, *rest[at:]])
            if one.kind == COMPUTE and at + 1 < len(instructions):
                yield f"{one} of node {node} last", changed(program, node, [*rest, one])
            if one.kind == FINISH:
                first = rng.randrange(at)
                if any(i.kind == SEND and i.number == one.number for i in instructions[first:at]):
                    moved = [*rest[:first], one, *rest[first:]]
                    yield f"{one} of node {node} at {first}", changed(program, node, moved)


@pytest.mark.parametrize("program", programs(), ids=["block", "convolutions"])
def test_a_mutant_is_refuted(program):
    prove(program)
    found = list(mutants(program, random.Random(1)))
    assert len(found) > 80
    missed = [name for name, mutant in found if not list(refutations(mutant))]
    # A round is finished without its target where nobody on that node reads it; there is nothing wrong then.
    read = {b for p in program.pieces for b in p.inputs} | {r.source for r in program.rounds}
    unread = [f"finish r{n} of" for n, r in enumerate(program.rounds) if r.target not in read]
    assert not [name for name in missed if not any(name.startswith(u) for u in unread)]


def test_a_circle_is_told():
    """Two nodes that each finish before they send."""
    program = lowered(models.block(), 2)[1].program
    for node in range(2):
        old = program.instructions[node]
        at = next(n for n, i in enumerate(old) if i.kind == FINISH and any(
            j.kind == RECEIVE and j.number == i.number for j in old))  # fmt: skip
        sends = [i for i in old if i.kind == SEND and i.number == old[at].number]
        order = [i for i in old[: at + 1] if i not in sends] + sends + list(old[at + 1 :])
        program = changed(program, node, order)
    told = "waits for ever at 'finish r0': node 1 has not sent r0"
    assert f"node 0 {told}" in list(refutations(program))
    with pytest.raises(WrongAnswer):
        prove(program)
