"""Schedule steps that several GPU recipes begin or fetch with."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Stage, TensorExpression
from ..roller.rprogram import RProgram
from ..roller.steps import Bind, CacheWrite, Fuse, Inline, Split, Step, Vectorize


def begin(expression: TensorExpression, program: RProgram) -> tuple[list[Step], Stage, Stage, str]:
    """Return the first steps (inlining), anchor, output, and the anchor's stage: a separate one if it is the output."""
    steps: list[Step] = [Inline(name) for name in program.inlined]
    anchor, output = expression.stage(program.anchor), expression.stage(program.output)
    inner = program.anchor
    if anchor is output and anchor.reduce:
        inner = f"{program.anchor}.local"
        steps.append(CacheWrite(program.anchor, "local", inner))
    return steps, anchor, output, inner


def fetch(staged: str, dims: tuple[str, ...], threads: int, vector: int) -> list[Step]:
    """Return the steps of a cooperative fetch: all threads copy the block's tile, `vector` elements each at a time."""
    whole = dims[0]
    steps: list[Step] = []
    if len(dims) > 1:
        whole = "whole"
        steps.append(Fuse(staged, dims, whole))
    steps.append(Split(staged, whole, (threads, vector), ("round", "fetch", "elements")))
    steps.append(Bind(staged, "fetch", "threadIdx.x"))
    if vector > 1:
        steps.append(Vectorize(staged, "elements"))
    return steps


def fuse(steps: list[Step], stage: str, loops: Sequence[str], name: str) -> str:
    """Append a step that fuses the loops and return the new loop; a single loop keeps its name."""
    if len(loops) == 1:
        return loops[0]
    steps.append(Fuse(stage, tuple(loops), name))
    return name
