"""Recipes for GPUs (and IPUs, which have some of them): each class hands over to the functions of its file."""

from __future__ import annotations

from collections.abc import Iterator

from ..device import DeviceSpec
from ..ir import TensorExpression
from ..micro_perf.geometry import Geometry
from ..roller.rprogram import RProgram
from ..roller.steps import Step
from .gpu_direct import construct_direct, construct_reduce, streams
from .gpu_loops import lower_direct, lower_reduce, lower_tiled
from .gpu_rows import construct_rows, lower_rows
from .gpu_tensor import TF32, construct_tensor, lower_tensor
from .gpu_tiled import construct_tiled
from .gpu_transpose import construct_transpose, lower_transpose
from .gpu_unrolled import construct_unrolled, lower_unrolled
from .kinds import multiplies_constants
from .lighter import lighter_programs
from .recipe import Context, Fit, Ranked, Recipe
from .row_nests import RowNest


def _plain(ctx: Context) -> bool:
    """Return whether a nest has loops of its own to tile: no rows of many stages, nor loops that stay as they are."""
    special = isinstance(ctx.nest, RowNest) or ctx.geometry.stage.uneven or multiplies_constants(ctx.geometry)
    return ctx.device.kind != "cpu" and not special


class GpuRows(Recipe):
    """Rows that go through every stage."""

    name = "gpu.rows"
    says = "the threads of a block walk rows together, every stage while the row is in fast memory"
    staged = "kept for a row"

    def applies(self, ctx: Context) -> Fit:
        return Fit.YES if ctx.device.kind != "cpu" and isinstance(ctx.nest, RowNest) else Fit.NO

    def construct(self, ctx: Context, top: int) -> Ranked:
        return construct_rows(ctx, top)

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        return lower_rows(expression, program)


class GpuUnrolled(Recipe):
    """Products with constant matrices."""

    name = "gpu.unrolled"
    says = "a thread computes a product with constant matrices, unrolled"

    def applies(self, ctx: Context) -> Fit:
        own = multiplies_constants(ctx.geometry) and not ctx.geometry.stage.uneven
        return Fit.YES if ctx.device.kind != "cpu" and not isinstance(ctx.nest, RowNest) and own else Fit.NO

    def construct(self, ctx: Context, top: int) -> Ranked:
        return construct_unrolled(ctx, top)

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        return lower_unrolled(expression, program)


class GpuTensor(Recipe):
    """Products of matrices on tensor cores."""

    name = "gpu.tensor"
    says = "blocks stage tiles of matrices in shared memory, warps multiply fragments on tensor cores"

    def applies(self, ctx: Context) -> Fit:
        return Fit.YES if _plain(ctx) and ctx.features.tensor_cores and ctx.geometry.reduce else Fit.NO

    def construct(self, ctx: Context, top: int) -> Ranked:
        return construct_tensor(ctx, top, ctx.features)

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        return lower_tensor(expression, program)

    def peak(self, expression: TensorExpression, program: RProgram, device: DeviceSpec) -> float | None:
        own = expression.tensors[program.staged[0]].dtype
        return device.peak(TF32 if program.choice("tf32") else own, tensor=True)

    def accumulators(self, program: RProgram, geometry: Geometry, device: DeviceSpec) -> int:
        return program.choice("warp_m") * program.choice("warp_n") // device.vector_width


class GpuTiled(Recipe):
    """Tiles staged in shared memory, a register tile a thread."""

    name = "gpu.tiled"
    says = "blocks stage input tiles in shared memory, threads keep a register tile"
    relaxes = True

    def applies(self, ctx: Context) -> Fit:
        g = ctx.geometry
        distinct = len({op.name for op in g.operands}) == len(g.operands)  # a tensor read twice has one staged tile
        several = distinct and len(g.operands) > 1 and g.stage.combiner == "sum"
        return Fit.YES if _plain(ctx) and several and any(g.reuse(i) for i in g.spatial) else Fit.NO

    def construct(self, ctx: Context, top: int) -> Ranked:
        return construct_tiled(ctx, top, ctx.features)

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        return lower_tiled(expression, program)

    def lighter(self, program: RProgram) -> Iterator[tuple[str, RProgram]]:
        return lighter_programs(program)


class GpuDirect(Recipe):
    """Each thread's outputs straight from global memory."""

    name = "gpu.direct"
    says = "each thread computes its outputs straight from global memory"

    def applies(self, ctx: Context) -> Fit:
        if ctx.device.kind == "cpu" or isinstance(ctx.nest, RowNest):
            return Fit.NO
        if ctx.geometry.stage.uneven:
            return Fit.YES
        last = multiplies_constants(ctx.geometry) or ctx.geometry.is_contraction()
        return Fit.LAST_RESORT if last else Fit.YES

    def construct(self, ctx: Context, top: int) -> Ranked:
        return construct_direct(ctx, top)

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        return lower_direct(expression, program)


class GpuReduce(Recipe):
    """Reductions that the threads of a block share."""

    name = "gpu.reduce"
    says = "the threads of a block share one reduction"

    def applies(self, ctx: Context) -> Fit:
        g = ctx.geometry
        if not _plain(ctx) or not g.reduce or not (len(g.operands) == 1 or g.stage.results > 1 or streams(g)):
            return Fit.NO
        return Fit.LAST_RESORT if g.is_contraction() else Fit.YES

    def construct(self, ctx: Context, top: int) -> Ranked:
        return construct_reduce(ctx, top)

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        return lower_reduce(expression, program)


class GpuTranspose(Recipe):
    """Tiles turned in shared memory."""

    name = "gpu.transpose"
    says = "blocks turn tiles in shared memory: read along the input's rows, stored along the output's"

    def applies(self, ctx: Context) -> Fit:
        if not _plain(ctx) or ctx.device.kind != "gpu" or ctx.geometry.reduce:
            return Fit.NO
        return Fit.LAST_RESORT if ctx.geometry.is_contraction() else Fit.YES

    def construct(self, ctx: Context, top: int) -> Ranked:
        return construct_transpose(ctx, top)

    def lower(self, expression: TensorExpression, program: RProgram) -> list[Step]:
        return lower_transpose(expression, program)
