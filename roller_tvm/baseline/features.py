"""Features of a GPU kernel for a learned cost model: counts of its tiles, level by level, without a predicted time."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2, prod

import numpy as np

from ..device import DeviceSpec
from ..micro_perf.access import fetch, store_sectors
from ..micro_perf.gpu import sectors
from ..micro_perf.gpu_kernel import COMPILER_STATEMENTS, body_of, shared_loads
from ..micro_perf.kernel import Kernel, StagedKernel
from ..micro_perf.registers import accumulators, fragments

NAMES = (
    # the grid
    "kernels", "blocks", "threads", "idle_lanes", "waves", "staged",
    # registers
    "accumulators", "fragment_least", "fragment_most", "vthreads", "unroll_limit", "statements", "rolled",
    # shared memory
    "shared_bytes", "depth", "steps", "reads_per_flop", "read_cycles_per_flop", "store_conflicts",
    # memory
    "fetches", "fetch_vector", "moved_per_flop", "requested_per_flop", "sector_bytes_per_flop", "run_first", "run_last",
    "output_sectors", "output_run", "flops", "bytes_per_flop", "guarded",
)  # fmt: skip


def _log(value: float) -> float:
    return log2(max(value, 2.0**-30))


def features(kernels: Sequence[Kernel], device: DeviceSpec) -> np.ndarray:
    """Return one row of `NAMES` for the kernel with the most FLOPs; counts are logarithms."""
    kernel = max(kernels, key=lambda k: k.geometry.stage.flops)
    g, warp = kernel.geometry, device.vector_width
    sector = device.far.transaction_bytes
    row = dict.fromkeys(NAMES, 0.0)
    warps = ceil(kernel.threads / warp)
    flops = max(1, g.stage.flops)
    row |= {
        "kernels": len(kernels), "blocks": _log(kernel.blocks), "threads": _log(kernel.threads),
        "idle_lanes": 1 - kernel.threads / (warps * warp), "waves": _log(kernel.blocks / device.units),
        "flops": _log(flops), "guarded": float(any(op.guarded for op in g.operands)),
        "bytes_per_flop": _log(sum(op.source_bytes for op in g.operands) / flops),
        "unroll_limit": _log(1 + (kernel.unroll_limit or 0)),
    }  # fmt: skip
    if len(kernels) > 1:
        row["output_run"] = _log(kernels[-1].threads)
    if not isinstance(kernel, StagedKernel):
        row["depth"] = _log(prod(g.extents[i] for i in g.reduce))
        return np.array([row[name] for name in NAMES])
    body = body_of(kernel, COMPILER_STATEMENTS)
    slots, cycles = shared_loads(kernel, body, warp)
    copies = [fetch(kernel, n, warp, sector) for n in range(len(g.operands))]
    parts = fragments(g, kernel.thread)
    of_step = [sectors(op, list(box), sector) for op, box in zip(g.operands, kernel.boxes, strict=True)]
    rounds = kernel.blocks * kernel.steps
    last = g.spatial[-1]
    points = kernel.outputs * kernel.depth
    runs = [op.run(box) for op, box in zip(g.operands, kernel.boxes, strict=True)]
    row |= {
        "staged": 1.0, "accumulators": _log(accumulators(g, kernel.thread)), "fragment_least": _log(min(parts)),
        "fragment_most": _log(max(parts)), "vthreads": _log(prod(kernel.vthreads)),
        "statements": _log(body.outputs * body.depth), "rolled": float(body.rolled),
        "shared_bytes": _log(kernel.shared_bytes), "depth": _log(kernel.depth), "steps": _log(kernel.steps),
        "reads_per_flop": _log(body.times * slots / points), "read_cycles_per_flop": _log(body.times * cycles / points),
        "store_conflicts": max(c.conflicts for c in copies), "fetches": _log(sum(c.rounds for c in copies)),
        "fetch_vector": _log(max(c.vector for c in copies)),
        "moved_per_flop": _log(sum(c.moved for c in copies) * rounds / flops),
        "requested_per_flop": _log(sum(c.requested for c in copies) * rounds / flops),
        "sector_bytes_per_flop": _log(sum(of_step) * rounds / flops), "run_first": _log(runs[0]),
        "run_last": _log(runs[-1]), "output_sectors": store_sectors(kernel, warp, sector),
        "output_run": _log(kernel.block[last]),
    }  # fmt: skip
    return np.array([row[name] for name in NAMES])
