"""Features of a CPU plan for a learned cost model: tiles and traffic, level by level, without a predicted time."""

from __future__ import annotations

from math import log2, prod

import numpy as np

from ..device import DeviceSpec
from ..ir import Stage
from ..planner.construction import RankedPlan
from ..roller.rprogram import RECIPE_NAMES, RProgram

#: Number of innermost axes of a nest that have their own features; a convolution has seven axes.
AXES = 8
#: Number of nearest memory levels that have their own features.
LEVELS = 4
#: Number of outermost tiles that have their own features.
TILES = 2


def _names() -> tuple[str, ...]:
    tiles = [f"{part} {t} axis {a}" for part in ("extent", "count") for t in range(TILES) for a in range(AXES)]
    levels = [f"bytes per flop {level}" for level in range(LEVELS)]
    rest = ["nests", "flops", "blocks", "waves", "idle", "registers", "near bytes", "outputs of a tile", "vector",
            "unrolled", "packed", "inlined", "lanes", "recipe"]  # fmt: skip
    order = [f"order axis {a}" for a in range(AXES)]
    return (*tiles, *levels, *order, *rest)


NAMES = _names()


def _log(value: float) -> float:
    return log2(max(value, 2.0**-30))


def plan_features(ranked: RankedPlan, device: DeviceSpec, nest: int | None = None) -> np.ndarray:
    """Return one row of ``NAMES`` for one nest of a plan; counts are logarithms.

    Parameters
    ----------
    nest : int, optional
        Position of the nest whose tiles are searched. Default: the nest with the longest predicted time, as in
        ``RTileSpace``.

    Examples
    --------
    >>> from roller_tvm.device import device_for_target
    >>> from roller_tvm.ir.operators import matmul
    >>> from roller_tvm.planner import construct
    >>> device = device_for_target("llvm -mcpu=skylake-avx512 -num-cores=2")
    >>> row = plan_features(construct(matmul(m=64, n=64, k=64), device, 1).best, device)
    >>> row.shape == (len(NAMES),), bool(np.isfinite(row).all())
    (True, True)
    """
    plan, estimates = ranked.plan, ranked.estimate.programs
    at = max(range(len(estimates)), key=lambda n: estimates[n].seconds) if nest is None else nest
    program, estimate = plan.programs[at], estimates[at]
    stage = plan.expression.stage(program.anchor)
    axes = [a.name for a in reversed(stage.axes)][:AXES]
    row = dict.fromkeys(NAMES, 0.0)
    outer = {a.name: a.extent for a in stage.axes}
    for number, tile in enumerate(program.tiles[:TILES]):
        for n, axis in enumerate(axes):
            row[f"extent {number} axis {n}"] = _log(tile[axis])
            row[f"count {number} axis {n}"] = _log(outer[axis] / tile[axis])
        outer = dict(tile.shape)
    flops = max(1, estimate.flops)
    for number, level in enumerate(list(reversed(estimate.levels))[:LEVELS]):
        row[f"bytes per flop {number}"] = _log(level.bytes / flops)
    for n, axis in enumerate(axes):
        row[f"order axis {n}"] = program.choice(f"order:{axis}", -1)
    row |= {
        "nests": len(plan.programs), "flops": _log(flops), "blocks": _log(estimate.blocks),
        "waves": _log(estimate.waves), "idle": 1 - estimate.utilisation, "registers": estimate.registers,
        "near bytes": _log(estimate.shared_bytes), "outputs of a tile": _log(_outputs(program, stage)),
        "vector": program.choice("vector"), "unrolled": _log(prod(program.choices_of("unroll").values())),
        "packed": len(program.staged), "inlined": len(program.inlined),
        "lanes": sum(s.lanes for s in plan.split_reductions), "recipe": RECIPE_NAMES.index(program.recipe),
    }  # fmt: skip
    return np.array([row[name] for name in NAMES])


def _outputs(program: RProgram, stage: Stage) -> int:
    """Return the number of outputs in the innermost tile."""
    spatial = [a.name for a in stage.spatial]
    return prod(program.tiles[-1][axis] for axis in spatial) if program.tiles else 1

