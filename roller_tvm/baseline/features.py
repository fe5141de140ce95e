"""Features of a GPU kernel for a learned cost model: counts of its tiles, level by level, without a predicted time."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2, prod

import numpy as np

from ..device import DeviceSpec
from ..micro_perf.gpu import sectors
from ..micro_perf.gpu_access import fetches, store_sectors
from ..micro_perf.gpu_kernel import shared_loads
from ..micro_perf.gpu_nest import runs
from ..micro_perf.kernel import Kernel, StagedKernel, StagedTable, body_of
from ..micro_perf.registers import RegisterTiles

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
    body, table = body_of(kernel), StagedTable.of([kernel])
    slots, cycles = (float(n[0]) for n in shared_loads(table, warp))
    copies = [fetches(table, n, warp, sector) for n in range(len(g.operands))]
    tiles = RegisterTiles.of(table.nest, table.thread)
    parts = [int(n[0]) for n in tiles.fragments]
    boxes = list(zip(g.operands, table.boxes, strict=True))
    of_step = sum(int(sectors(op, box, sector)[0]) for op, box in boxes)
    rounds = kernel.blocks * kernel.steps
    last = g.spatial[-1]
    points = kernel.outputs * kernel.depth
    lengths = [int(runs(op, box)[0]) for op, box in boxes]
    row |= {
        "staged": 1.0, "accumulators": _log(int(tiles.accumulators[0])),
        "fragment_least": _log(min(parts)),
        "fragment_most": _log(max(parts)), "vthreads": _log(prod(kernel.vthreads)),
        "statements": _log(body.outputs * body.depth), "rolled": float(body.rolled),
        "shared_bytes": _log(kernel.shared_bytes), "depth": _log(kernel.depth), "steps": _log(kernel.steps),
        "reads_per_flop": _log(body.times * slots / points), "read_cycles_per_flop": _log(body.times * cycles / points),
        "store_conflicts": max(float(c.conflicts[0]) for c in copies),
        "fetches": _log(sum(int(c.rounds[0]) for c in copies)),
        "fetch_vector": _log(max(int(c.vector[0]) for c in copies)),
        "moved_per_flop": _log(sum(float(c.moved[0]) for c in copies) * rounds / flops),
        "requested_per_flop": _log(sum(float(c.requested[0]) for c in copies) * rounds / flops),
        "sector_bytes_per_flop": _log(of_step * rounds / flops), "run_first": _log(lengths[0]),
        "run_last": _log(lengths[-1]), "output_sectors": float(store_sectors(table, warp, sector)[0]),
        "output_run": _log(kernel.block[last]),
    }  # fmt: skip
    return np.array([row[name] for name in NAMES])
