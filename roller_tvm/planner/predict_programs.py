"""The model's times of rPrograms that are at hand: a record of measured plans, say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..device import DeviceSpec
from ..micro_perf.geometry import Geometry, in_memory
from ..micro_perf.gpu_fragments import TensorShapes, tensor_times
from ..micro_perf.gpu_nest import Array, GpuNest, columns
from ..micro_perf.gpu_tiles import Tiled, estimates
from ..micro_perf.gpu_times import Times
from ..recipes.gpu_direct import direct_times
from ..recipes.gpu_nests import linear_tiles
from ..recipes.gpu_reduce import reduce_times
from ..recipes.gpu_tensor import product_of
from ..roller.alignment import Rejection
from ..roller.rprogram import Plan, RProgram


def predict_plan(plan: Plan, device: DeviceSpec) -> float | None:
    """Return the predicted seconds of a plan for a GPU; None if a recipe of it is not known here.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.ir.operators import matmul
    >>> from roller_tvm.planner import construct
    >>> best = construct(matmul(m=1024, n=1024, k=1024), load_device("v100"), top=1).best
    >>> predict_plan(best.plan, load_device("v100")) == best.seconds
    True
    """
    total = 0.0
    for program in plan.programs:
        times = program_times(geometry_of(plan, program), [program], device)
        if times is None:
            return None
        total += float(times.seconds[0])
    return total


def geometry_of(plan: Plan, program: RProgram) -> Geometry:
    """Return the accesses of one of a plan's nests."""
    return Geometry.of(plan.expression, program.anchor, program.inlined, program.output)


def program_times(geometry: Geometry, programs: Sequence[RProgram], device: DeviceSpec) -> Times | None:
    """Return the predicted times of rPrograms of one nest and one recipe; None if the recipe is not known here."""
    known = _TIMES.get(programs[0].recipe)
    return known(geometry, programs, device) if known else None


def _table(geometry: Geometry, tiles: Sequence[Sequence[int]]) -> Array:
    return columns(tiles, len(geometry.extents))


def _choices(programs: Sequence[RProgram], key: str, default: int = 1) -> Array:
    return np.array([p.choice(key, default) for p in programs], np.int64)


def _tiled(geometry: Geometry, programs: Sequence[RProgram], device: DeviceSpec) -> Times:
    axes, operands = geometry.axes, geometry.operands
    block, thread = (
        _table(geometry, [[p.tile(level)[a] for a in axes] for p in programs]) for level in ("shared", "register")
    )
    virtual, unrolled = (
        _table(geometry, [[p.choice(f"{kind}:{a}", 1) for a in axes] for p in programs])
        for kind in ("vthread", "unroll")
    )
    vectors = columns([[p.choice(f"vector:{op.name}", 1) for op in operands] for p in programs], len(operands))
    padding = columns(
        [[dict(p.tile("shared").padding).get(op.name, 0) for op in operands] for p in programs], len(operands)
    )
    made = Tiled(
        GpuNest.of(geometry), block, thread, virtual, unrolled, vectors, padding, _choices(programs, "store"),
        _choices(programs, "threads"), _choices(programs, "stages"),
    )  # fmt: skip
    return estimates(made, device)


def _tensor(geometry: Geometry, programs: Sequence[RProgram], device: DeviceSpec) -> Times | None:
    made = product_of(geometry, bool(programs[0].choice("tf32")), bool(programs[0].choice("swapped")))
    if isinstance(made, Rejection):
        return None
    block, warp = (
        np.array([[p.choice(f"{of}_{a}") for p in programs] for a in along], np.int64)
        for of, along in (("block", "mnk"), ("warp", "mn"))
    )
    names = [access.tensor for access in (made.roles.left, made.roles.right)]
    vectors = np.array([[p.choice(f"vector:{name}", 1) for p in programs] for name in names], np.int64)
    shapes = TensorShapes(block, warp, _choices(programs, "stages"), vectors, _choices(programs, "raster"))
    ahead = any(p.choice("async") for p in programs)
    return tensor_times(geometry, device, made.matrices, made.sizes, shapes, made.dtype, ahead)


def _direct(geometry: Geometry, programs: Sequence[RProgram], device: DeviceSpec) -> Times:
    nest = GpuNest.of(geometry if geometry.reduce else in_memory(geometry, programs[0].inlined))
    threads, items, vector = (_choices(programs, key) for key in ("threads", "items", "vector"))
    block, thread = linear_tiles(nest, threads * items * vector), linear_tiles(nest, vector)
    return direct_times(nest, device, block, thread, threads, items, vector)


def _reduce(geometry: Geometry, programs: Sequence[RProgram], device: DeviceSpec) -> Times:
    return reduce_times(GpuNest.of(geometry), device, _choices(programs, "rows"), _choices(programs, "lanes"))


_TIMES: dict[str, Callable[[Geometry, Sequence[RProgram], DeviceSpec], Times | None]] = {
    "gpu.tiled": _tiled, "gpu.tensor": _tensor, "gpu.direct": _direct, "gpu.reduce": _reduce,
}  # fmt: skip
