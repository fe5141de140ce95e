"""A scheduled TensorIR function as descriptions of its kernels for the micro-performance model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import numpy as np

from roller_tvm.micro_perf.geometry import Geometry, Tile, in_memory
from roller_tvm.micro_perf.kernel import DirectKernel, Kernel, ReduceKernel, StagedKernel
from roller_tvm.tir.nodes import nests, root_of
from roller_tvm.tir.placed import PlacedBlock, PlacedLoop, placed_blocks
from roller_tvm.tir.read import TirReading

from .state import Unreadable

UNROLL, PIPELINE, ALIGN = "pragma_auto_unroll_max_step", "software_pipeline_stage", "buffer_dim_align"
THREAD, VTHREAD, BLOCK = "threadIdx", "vthread", "blockIdx"
INIT, UPDATE = "_init", "_update"


def kernels_of_function(func: Any, plain: Any, reading: TirReading) -> tuple[Kernel, ...]:
    """Return the kernels of a scheduled function, in the order in which they run.

    Parameters
    ----------
    func, plain : tvm.tirx.PrimFunc
        The function after scheduling, and before.
    reading : TirReading
        Reading of `plain`.

    Raises
    ------
    Unreadable
        If a nest is bound to no threads, or is of a kind that has no description.
    """
    body = root_of(func).body
    statements = list(body.seq) if type(body).__name__ == "SeqStmt" else [body]
    try:
        nests_found = [list(placed_blocks(s)) for s in statements]
    except ValueError as error:
        raise Unreadable(str(error)) from None
    names = _Names.of(plain, reading)
    stored = {str(b.name) for blocks in nests_found for p in blocks for b in p.written if _scope(b) == "global"}
    return tuple(_Nest(blocks, names, stored).kernel() for blocks in nests_found)


def _scope(buffer: Any) -> str:
    return str(buffer.scope()) or "global"


@dataclass(frozen=True)
class _Names:
    """Meaning of the names of blocks and buffers, and the axes that each iterator of a block became."""

    reading: TirReading
    stages: dict[str, str]  # block -> stage
    iterators: dict[str, tuple[tuple[str, ...], ...]]  # stage -> per iterator of its block, axes
    tensors: dict[str, str]  # buffer -> input or stage

    @classmethod
    def of(cls, plain: Any, reading: TirReading) -> _Names:
        stages = {block: stage for stage, block in reading.blocks.items()}
        iterators = {}
        for nest in nests(plain):
            stage = stages[nest.name]
            labels = {str(iv.var.name): label for iv, label in (*nest.spatial, *nest.reduce)}
            loops = reading.loops[stage]
            iterators[stage] = tuple(
                loops.get(labels.get(str(iv.var.name), ""), ()) for iv in nest.block.iter_vars
            )
        tensors = {str(buffer.name): name for name, buffers in reading.buffers.items() for buffer in buffers}
        return cls(reading, stages, iterators, tensors)

    def stage(self, placed: PlacedBlock) -> str | None:
        """Return the stage that a block computes; None if it computes none."""
        for end in (UPDATE, ""):
            name = placed.name.removesuffix(end)
            if name in self.stages:
                return self.stages[name]
        return None

    def tensor(self, buffer: Any) -> str | None:
        """Return the tensor in a buffer, or the tensor that it is a copy of in another memory; None if unknown."""
        name, scope = str(buffer.name), _scope(buffer)
        own = (name, name.removesuffix(f"_{scope}"), name.removesuffix(f"_{scope.replace('.', '_')}"))
        return next((self.tensors[n] for n in own if n in self.tensors), None)


class _Nest:
    """One kernel: the blocks under a statement of the function."""

    def __init__(self, blocks: Sequence[PlacedBlock], names: _Names, stored: set[str]) -> None:
        self.blocks, self.names = blocks, names
        self.expression = names.reading.expression
        whole = next((p for p in blocks if next(placed_blocks(p.block.body), None)), None)
        if whole is not None:
            raise Unreadable(f"block '{whole.name}' holds others: tensor cores have no description here")
        found = [(p, s) for p in blocks if (s := names.stage(p)) and not p.name.endswith(INIT)]
        reducing = [(p, s) for p, s in found if p.reduces]
        if len(reducing) > 1:
            told = ", ".join(p.name for p, _ in reducing)
            raise Unreadable(f"{told} reduce in one kernel: no known kind of kernel")
        if not found:
            raise Unreadable(f"no block of {[p.name for p in blocks]} is a stage of the workload")
        self.anchor, self.stage = reducing[0] if reducing else found[-1]
        if not any(loop.kind.startswith(THREAD) for loop in self.anchor.loops):
            raise Unreadable(f"block '{self.anchor.name}' is bound to no GPU threads")
        kept = {names.tensors.get(name) for name in stored}
        inlined = [s.name for s in self.expression.stages if s.name not in kept and s.name != self.stage]
        last = [t for p in blocks for b in p.written if _scope(b) == "global" and (t := names.tensor(b))]
        if not last:
            raise Unreadable(f"'{self.anchor.name}' writes no tensor of the workload")
        self.inlined, self.output = tuple(inlined), last[-1]
        self.iterators = names.iterators[self.stage]

    def kernel(self) -> Kernel:
        if any(_scope(b).startswith("shared") for b in self.anchor.read):
            return self._staged()
        geometry = in_memory(self._geometry(), self.inlined)
        limit = self._unroll_limit()
        loops = self.anchor.loops
        bound = [loop for loop in loops if loop.kind.startswith(THREAD)]
        threads = prod(loop.extent for loop in bound)
        lanes = prod(loop.extent for loop in bound if any(a in geometry.reduce for a in self._axes(loop, geometry)))
        if lanes > 1:
            return ReduceKernel(geometry, lanes, threads // lanes, limit)
        own = [
            loop for loop in loops if not loop.kind.startswith((BLOCK, THREAD))
            and all(a in geometry.spatial_set for a in self._axes(loop, geometry))
        ]  # fmt: skip
        vector = prod(loop.extent for p in self.blocks for loop in p.loops[-1:] if loop.kind == "vectorized")
        outputs = prod(loop.extent for loop in own if loop.kind != "vectorized")
        return DirectKernel(geometry, threads, max(1, outputs), max(1, vector), limit)

    def _geometry(self) -> Geometry:
        return Geometry.of(self.expression, self.stage, self.inlined, self.output)

    def _unroll_limit(self) -> int:
        given = [int(loop.annotations[UNROLL]) for p in self.blocks for loop in p.loops if UNROLL in loop.annotations]
        return max(given, default=0)

    # Axes ------------------------------------------------------------------------------------------------

    def _counts(self, loops: Sequence[PlacedLoop], geometry: Geometry) -> Tile:
        """Return, per axis, how many different coordinates these loops visit."""
        coordinates = dict.fromkeys(geometry.axes, np.zeros(1, dtype=np.int64))
        sizes = dict(zip(geometry.axes, geometry.extents, strict=True))
        for axes, value in zip(self.iterators, self._moves(loops), strict=True):
            rest = value
            for axis in reversed(axes[1:]):  # an iterator's digits, the last fastest
                rest, coordinates[axis] = np.divmod(rest, sizes[axis])
            if axes:
                coordinates[axes[0]] = rest
        return tuple(len(np.unique(coordinates[a])) for a in geometry.axes)

    def _moves(self, loops: Sequence[PlacedLoop]) -> list[np.ndarray]:
        try:
            return self.anchor.moves(loops)
        except ValueError as error:
            raise Unreadable(f"'{self.anchor.name}': {error}") from None

    def _axes(self, loop: PlacedLoop, geometry: Geometry) -> list[int]:
        """Return the axes along which a loop moves."""
        return [i for i, n in enumerate(self._counts([loop], geometry)) if n > 1]

    def _tile(self, which: Callable[[PlacedLoop], bool], geometry: Geometry) -> Tile:
        loops = [loop for loop in self.anchor.loops if which(loop) and loop.extent > 1]
        tile = self._counts(loops, geometry)
        if prod(tile) != prod(loop.extent for loop in loops):
            raise Unreadable(f"'{self.anchor.name}' splits fused axes")
        return tile

    # Staged ----------------------------------------------------------------------------------------------

    def _staged(self) -> StagedKernel:
        g, anchor = self._geometry(), self.anchor
        copies = {
            tensor: p for p in self.blocks if p is not anchor for b in p.written
            if _scope(b).startswith("shared") and (tensor := self.names.tensor(b))
        }  # fmt: skip
        missing = [op.name for op in g.operands if op.name not in copies]
        if missing:
            raise Unreadable(f"operand {', '.join(missing)} is not staged")
        copied = [copies[op.name] for op in g.operands]
        place = max(_common(anchor.loops, p.loops) for p in copied)
        inside = [loop for loop in anchor.loops[place:] if loop.extent > 1]
        around = [loop for loop in anchor.loops[:place] if not loop.kind.startswith((BLOCK, THREAD, VTHREAD))]
        if any(a in g.spatial_set for loop in around for a in self._axes(loop, g)):
            raise Unreadable(f"'{anchor.name}' computes several tiles of a block in turn")
        loops: list[tuple[int, int]] = []
        step, own = [1] * len(g.extents), [1] * len(g.extents)
        for loop in inside:
            axes = self._axes(loop, g)
            if loop.kind.startswith(THREAD):
                raise Unreadable(f"'{anchor.name}' is computed by other threads than those around its fetches")
            if loop.kind.startswith(VTHREAD):
                continue
            if len(axes) != 1:
                raise Unreadable(f"'{anchor.name}' fuses loops")
            loops.append((axes[0], loop.extent))
            (own if axes[0] in g.spatial_set else step)[axes[0]] *= loop.extent
        vthreads = self._tile(lambda loop: loop.kind.startswith(VTHREAD), g)
        lanes = self._tile(lambda loop: loop.kind.startswith(THREAD), g)
        thread = tuple(v * o for v, o in zip(vthreads, own, strict=True))
        block = tuple(
            min(thread[i] * lanes[i], e) if i in g.spatial_set else step[i] for i, e in enumerate(g.extents)
        )
        boxes = [op.box(block) for op in g.operands]
        vectors = tuple(prod(loop.extent for loop in p.loops if loop.kind == "vectorized") for p in copied)
        padding = tuple(_padding(p, box) for p, box in zip(copied, boxes, strict=True))
        stages = [max(map(int, loop.annotations[PIPELINE])) + 1 for loop in around if PIPELINE in loop.annotations]
        return StagedKernel(
            g, block, thread, vthreads, tuple(loops), self._limit_of(inside, prod(vthreads)), vectors, padding,
            self._store(), max(stages, default=1), any(ALIGN in p.block.annotations for p in copied),
        )  # fmt: skip

    def _limit_of(self, inside: Sequence[PlacedLoop], vthreads: int) -> int:
        """Return the number of unrolled statements: by the pragma's limit, or loop by loop."""
        by_name = [loop.extent for loop in inside if loop.kind == "unrolled"]
        return max(self._unroll_limit(), prod(by_name) * vthreads if by_name else 0)

    def _store(self) -> int:
        """Return the number of outputs that a store moves."""
        for p in self.blocks:
            if any(_scope(b) == "global" for b in p.written) and p is not self.anchor:
                return prod(loop.extent for loop in p.loops if loop.kind == "vectorized")
        return 1


def _common(first: Sequence[PlacedLoop], second: Sequence[PlacedLoop]) -> int:
    """Return the number of loops around both of two blocks."""
    count = 0
    for a, b in zip(first, second, strict=False):
        if a.key != b.key:
            break
        count += 1
    return count


def _padding(placed: PlacedBlock, box: Sequence[int]) -> int:
    """Return the elements added to a row of a staged tile."""
    row = len(box) - 2
    for _, dim, factor, offset in placed.block.annotations.get(ALIGN, ()):
        if int(dim) == row:
            return ceil((box[-1] - int(offset)) / int(factor)) * int(factor) + int(offset) - box[-1]
    return 0
