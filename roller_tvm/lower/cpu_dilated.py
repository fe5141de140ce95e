"""Recipe cpu.dilated: an rProgram as schedule steps.

Shape of the loops (``p`` parallel chunks, ``o`` register tiles of a chunk, ``u`` unrolled)::

    cpu.dilated  p.. -> parallel   i..  v -> vector                        output, in the order of its axes
                   o..  reduction  reduction's u..  u..  v -> vector       anchor, at p: with a last axis for vectors
                   reduction  o..  reduction's u..  u..                    without: LLVM's vectors run over the last o

Unrolling lets the compiler see which products meet a zero.
"""

from __future__ import annotations

from ..expr import TensorExpression
from ..plan.cpu_dilated import output_axes
from ..plan.program import RProgram
from .cpu import vector_last, vector_name
from .loops import open_parts
from .steps import CacheWrite, ComputeAt, Fuse, Inline, Parallel, Reorder, Split, Step, Unroll, Vectorize


def lower_cpu_dilated(expression: TensorExpression, program: RProgram) -> list[Step]:
    """Return the steps of recipe cpu.dilated."""
    anchor, output = expression.stage(program.anchor), expression.stage(program.output)
    chunk = program.tile("l2")
    steps: list[Step] = [Inline(name) for name in program.inlined]
    inner = anchor.name
    if anchor is output:
        inner = f"{anchor.name}.local"
        steps.append(CacheWrite(anchor.name, "local", inner))
    out = output.name
    opened, loops = open_parts(out, output.spatial)
    steps += opened
    taken = {axis: chunk[name] for name, axis in output_axes(expression, anchor, output, program.inlined).items()}
    for axis, loop in zip(output.spatial, loops, strict=True):
        steps.append(Split(out, loop, (taken.get(axis.name, axis.extent),), (f"{loop}.p", f"{loop}.i")))
    outer, rest = tuple(f"{loop}.p" for loop in loops), [f"{loop}.i" for loop in loops]
    vector = program.choice("vector")
    if vector > 1:
        at = next(n for n, a in enumerate(output.spatial) if a.name == vector_name(output))
        steps.append(Split(out, rest[at], (vector,), (f"{loops[at]}.o", f"{loops[at]}.v")))
        rest = [*rest[:at], f"{loops[at]}.o", *rest[at + 1 :], f"{loops[at]}.v"]
    steps.append(Reorder(out, (*outer, *rest)))
    whole = outer[0]
    if len(outer) > 1:
        whole = "parallel"
        steps.append(Fuse(out, outer, whole))
    steps.append(Parallel(out, whole))
    if vector > 1:
        steps.append(Vectorize(out, rest[-1]))
    steps.append(ComputeAt(inner, out, whole))
    return steps + _tiles(expression, program, inner)


def _tiles(expression: TensorExpression, program: RProgram, inner: str) -> list[Step]:
    """Return the steps of the anchor inside a chunk."""
    anchor, tile = expression.stage(program.anchor), program.tile("register")
    steps, spatial = open_parts(inner, anchor.spatial)
    opened, reduce = open_parts(inner, anchor.reduce)
    steps += opened
    lengths = [tile[a.name] for a in anchor.spatial]
    lengths += [program.choice(f"unroll:{a.name}", 1) for a in anchor.reduce]
    for loop, length in zip([*spatial, *reduce], lengths, strict=True):
        steps.append(Split(inner, loop, (length,), (f"{loop}.o", f"{loop}.u")))
    tiles, sums = [f"{loop}.o" for loop in spatial], [f"{loop}.o" for loop in reduce]
    unrolled, last = [f"{loop}.u" for loop in (*reduce, *spatial)], ""
    if not program.choice("columns"):
        last = vector_last([f"{loop}.u" for loop in spatial], anchor)[-1]
        unrolled.remove(last)
    order = [*tiles, *sums] if last else [*sums, *tiles]
    steps.append(Reorder(inner, (*order, *unrolled, *([last] if last else []))))
    steps += [Unroll(inner, loop) for loop in unrolled]
    if last:
        steps.append(Vectorize(inner, last))
    return steps
