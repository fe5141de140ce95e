"""Recipe gpu.tiled: blocks stage input tiles in shared memory, threads keep a register tile.

Construction scales up from registers to shared memory, and out over the units (``gpu_tile_candidates.py``). The
estimates stand in ``micro_perf/gpu_tiles.py``.

Its loops (``b`` blocks, ``v`` virtual threads, ``t`` threads, ``i`` a thread's own)::

    b.. -> blockIdx   v.. -> vthread   t.. -> threadIdx   i..      output
      k.0.. k.1.. k.2.. i..                                        anchor, in registers
        fetch -> threadIdx, vectors                                staged inputs, in shared memory
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..ir import TensorExpression
from ..micro_perf.geometry import Geometry
from ..micro_perf.gpu_nest import ceil_div
from ..micro_perf.gpu_tiles import Tiled, estimates
from ..micro_perf.gpu_times import Times
from ..roller.alignment import Rejection
from ..roller.features import Features
from ..roller.loops import open_parts
from ..roller.rprogram import RProgram
from ..roller.steps import Bind, CacheRead, ComputeAt, Fuse, Reorder, Split, Step, StorageAlign, Unroll, Vectorize
from ..roller.tensor_steps import Pipeline
from .gpu_loops import begin, fetch
from .gpu_nests import candidates, copies_ahead, tiles_loops
from .gpu_tile_candidates import (
    REFINED,
    REGISTER_LEAST,
    REGISTER_MOST,
    Found,
    awkward,
    coarse_candidates,
    fine_candidates,
    reduction_steps,
)
from .lighter import lighter_programs
from .recipe import Candidate, Context, Fit, Recipe
from .staging import storage_alignment

#: Candidates for which every effect is counted: those that the quick estimate ranks first.
COUNTED_IN_FULL = 64
#: Candidates tried with more buffers: with fewer, the best of ten plans can change.
STAGED = 20
#: Most buffers of a staged tile to try, and the bytes that the smallest cp.async moves (PTX ISA).
MOST_STAGES, COPY_LEAST = 4, 4


class GpuTiled(Recipe):
    """Tiles staged in shared memory, a register tile a thread."""

    name = "gpu.tiled"
    says = "blocks stage input tiles in shared memory, threads keep a register tile"
    relaxes = True

    def applies(self, ctx: Context) -> Fit:
        g = ctx.geometry
        distinct = len({op.name for op in g.operands}) == len(g.operands)  # a tensor read twice has one staged tile
        several = distinct and len(g.operands) > 1 and g.stage.combiner == "sum"
        return Fit.YES if tiles_loops(ctx) and several and any(g.reuse(i) for i in g.spatial) else Fit.NO

    def construct(self, ctx: Context, top: int) -> list[Candidate]:
        """Return ranked candidates of recipe gpu.tiled at one eps."""
        g, device = ctx.geometry, ctx.device
        if not g.spatial or not g.reduce or not g.operands:
            return []
        lacking = [i for i in g.spatial if awkward(g.extents[i])]
        if lacking and ctx.eps == 0.0:
            for i in lacking:
                need = f"a divisor of '{g.axes[i]}' from {REGISTER_LEAST} to {REGISTER_MOST}"
                ctx.reject(Rejection("tensor shape", need, str(g.extents[i]), "relax eps"))
            return []
        steps = reduction_steps(g, device)
        block, thread = (tiles[:, :REFINED] for tiles in coarse_candidates(ctx, steps, bool(lacking)))
        found = fine_candidates(ctx, block, thread, steps)
        if not len(found.rows):
            return []
        made, times = ranked(ctx, found, top)
        if copies_ahead(ctx):
            made, times = staged(ctx, ctx.features, made, times)
        return candidates(self.name, times, range(min(2 * top, made.count)), lambda n: program(ctx, made, n))

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        """Return the steps of recipe gpu.tiled."""
        steps, anchor, output, inner = begin(expression, program)
        geometry = Geometry.of(expression, program.anchor, program.inlined, program.output)
        block, thread = program.tile("shared"), program.tile("register")
        virtual = program.choices_of("vthread")
        out, top = output.name, anchor.spatial

        opened, loops = open_parts(output.name, output.spatial)
        steps += opened
        for axis, loop in zip(top, loops, strict=True):
            v = virtual.get(axis.name, 1)
            own = thread[axis.name]
            names = tuple(f"{loop}.{c}" for c in "bvti")
            steps.append(Split(out, loop, (v, block[axis.name] // own, own // v), names))
        groups = {c: tuple(f"{loop}.{c}" for loop in loops) for c in "bvti"}
        steps.append(Reorder(out, groups["b"] + groups["v"] + groups["t"] + groups["i"]))
        for name, place in (("block", "blockIdx.x"), ("virtual", "vthread"), ("thread", "threadIdx.x")):
            steps += [Fuse(out, groups[name[0]], name), Bind(out, name, place)]
        width = program.choice("store", 1)
        own_loops = list(groups["i"])
        if width > 1:
            last = own_loops.pop()
            steps += [Split(out, last, (width,), (f"{last}o", f"{last}v")), Vectorize(out, f"{last}v")]
            own_loops.append(f"{last}o")
        steps += [Unroll(out, loop) for loop in own_loops]
        steps.append(ComputeAt(inner, out, "thread"))

        opened, spatial = open_parts(inner, anchor.spatial)
        steps += opened
        opened, reduce = open_parts(inner, anchor.reduce)
        steps += opened
        for axis, loop in zip(anchor.reduce, reduce, strict=True):
            step, u = block[axis.name], program.choice(f"unroll:{axis.name}", 1)
            steps.append(Split(inner, loop, (step // u, u), tuple(f"{loop}.{n}" for n in (0, 1, 2))))
        stages = program.choice("stages", 1)
        outer = list(zip(reduce, anchor.reduce, strict=True))
        if stages > 1:  # copies run ahead in the loop that they stand in: the longest
            outer.sort(key=lambda o: -(-o[1].extent // block[o[1].name]))
        order = [*(f"{loop}.0" for loop, _ in outer), *(f"{loop}.{n}" for n in (1, 2) for loop in reduce)]
        steps.append(Reorder(inner, (*order, *spatial)))
        # Expanded by TVM, not by the compiler: accumulators are then indexed by constants and live in registers.
        expanded = (*order[2 * len(reduce):], *(spatial if program.choice("unroll_tile", 1) else ()))
        steps += [Unroll(inner, loop) for loop in expanded]

        stage_loop = order[len(reduce) - 1]
        align = storage_alignment(geometry, program)
        for name in program.staged:
            staged = f"{name}.shared"
            dims = tuple(f"d{n}" for n in range(len(expression.tensors[name].shape)))
            scope = "shared" if stages == 1 else "shared.dyn"
            steps += [CacheRead(name, scope, (inner,), staged), ComputeAt(staged, inner, stage_loop)]
            steps += [StorageAlign(staged, f"d{dim}", factor, 0) for dim, factor in align[name]]
            steps += fetch(staged, dims, program.choice("threads"), program.choice(f"vector:{name}", 1))
        if stages > 1:
            steps.append(Pipeline(inner, stage_loop, len(program.staged), stages, 1))
        return steps

    def lighter(self, program: RProgram) -> Iterator[tuple[str, RProgram]]:
        return lighter_programs(program)


def ranked(ctx: Context, found: Found, top: int) -> tuple[Tiled, Times]:
    """Return the best candidates by the full model (the one compared with recorded schedules), the fastest first."""
    made = found.fastest(max(COUNTED_IN_FULL, 2 * top))
    times = estimates(made, ctx.device)
    best = times.fastest_first[: max(STAGED, 2 * top)]
    return made.take(best), times.take(best)


def staged(ctx: Context, features: Features, made: Tiled, told: Times) -> tuple[Tiled, Times]:
    """Return candidates with as many buffers as their loads' latency needs and shared memory has room for."""
    g, device = ctx.geometry, ctx.device
    # Copies past the registers compute nothing on the way.
    if not made.count or any(op.arithmetic or any(op.opaque) for op in g.operands):
        return made, told
    enough = np.ones(made.count, bool)
    for op, vector in zip(g.operands, made.vectors, strict=True):
        enough &= op.element_bytes * vector >= COPY_LEAST
    steps = np.maximum.reduce(ceil_div(made.nest.extents[made.nest.inner], made.block[made.nest.inner]))
    shared, limit = made.kernels.shared_bytes, features.shared_limit(device)
    rows, stages = [np.arange(made.count)], [made.stages]
    for more in range(2, MOST_STAGES + 1):
        at = np.flatnonzero(enough & (more <= steps) & (shared * more <= limit))
        rows.append(at)
        stages.append(np.full(len(at), more))
    of = np.concatenate(rows)
    every = replace(made.take(of), stages=np.concatenate(stages))
    times = estimates(every, device)
    seconds = np.where(times.resident > 0, times.seconds, np.inf)
    best = np.lexsort((every.stages, seconds, of))
    best = best[np.unique(of[best], return_index=True)[1]]
    best = best[np.argsort(times.seconds[best], kind="stable")]
    best = best[times.resident[best] > 0]
    return every.take(best), times.take(best)


def program(ctx: Context, made: Tiled, n: int) -> RProgram:
    """Return a candidate as an rProgram."""
    g = ctx.geometry
    block, thread = made.block[:, n].tolist(), made.thread[:, n].tolist()
    padding = {op.name: p for op, p in zip(g.operands, made.padding[:, n].tolist(), strict=True) if p}
    tiles = (ctx.rtile("shared", tuple(block), padding), ctx.rtile("register", tuple(thread)))
    unrolled, vthreads = made.unrolled[:, n].tolist(), made.vthreads[:, n].tolist()
    choices: dict[str, int] = {"threads": int(made.threads[n])}
    choices.update({f"unroll:{g.axes[i]}": unrolled[i] for i in g.reduce if unrolled[i] > 1})
    choices.update({f"vthread:{a}": v for a, v in zip(g.axes, vthreads, strict=True) if v > 1})
    choices.update({f"vector:{op.name}": v for op, v in zip(g.operands, made.vectors[:, n].tolist(), strict=True)})
    choices["store"] = int(made.store[n])
    if made.stages[n] > 1:
        choices["stages"] = int(made.stages[n])
    names = tuple(dict.fromkeys(op.name for op in g.operands))
    return ctx.program("gpu.tiled", tiles, tuple(choices.items()), names)