"""Schedule steps that several GPU recipes begin or fetch with."""

from __future__ import annotations

from ..ir import Stage, TensorExpression
from ..roller.loops import fuse
from ..roller.rprogram import RProgram
from ..roller.steps import Bind, CacheWrite, Inline, Split, Step, Vectorize


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
    steps: list[Step] = []
    whole = fuse(steps, staged, dims, "whole")
    steps.append(Split(staged, whole, (threads, vector), ("round", "fetch", "elements")))
    steps.append(Bind(staged, "fetch", "threadIdx.x"))
    if vector > 1:
        steps.append(Vectorize(staged, "elements"))
    return steps
