"""Learned cost models (XGBoost) beside Roller's analytic model: features of a kernel or plan, training, ranking."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2, prod
from pathlib import Path
from typing import Any

import numpy as np

from roller_tvm.device import DeviceSpec
from roller_tvm.errors import BadInput, RollerError, UsageError
from roller_tvm.ir import Stage
from roller_tvm.ir.operators import lookup, normalize, parse_params
from roller_tvm.micro_perf.gpu import sectors
from roller_tvm.micro_perf.gpu_access import fetches, store_sectors
from roller_tvm.micro_perf.gpu_kernel import shared_loads
from roller_tvm.micro_perf.kernel import Kernel, StagedKernel, StagedTable, body_of
from roller_tvm.micro_perf.registers import RegisterTiles
from roller_tvm.planner.construction import Construction, RankedPlan
from roller_tvm.roller.rprogram import RECIPE_NAMES, RProgram

# -- features ---------------------------------------------------------------------------------------------------------

#: Features of a GPU kernel.
KERNEL_NAMES = (
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


def kernel_features(kernels: Sequence[Kernel], device: DeviceSpec) -> np.ndarray:
    """Return one row of ``KERNEL_NAMES`` for the kernel with the most FLOPs; counts are logarithms."""
    kernel = max(kernels, key=lambda k: k.geometry.stage.flops)
    g, warp = kernel.geometry, device.vector_width
    sector = device.far.transaction_bytes
    row = dict.fromkeys(KERNEL_NAMES, 0.0)
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
        return np.array([row[name] for name in KERNEL_NAMES])
    body, table = body_of(kernel), StagedTable.of([kernel])
    slots, cycles = (float(n[0]) for n in shared_loads(table, warp))
    copies = fetches(table, warp, sector)
    tiles = RegisterTiles.of(table.nest, table.thread)
    parts = [int(n[0]) for n in tiles.fragments]
    of_step = int(sectors(table.nest, table.boxes, sector).sum())
    rounds = kernel.blocks * kernel.steps
    last = g.spatial[-1]
    points = kernel.outputs * kernel.depth
    lengths = table.nest.runs(table.boxes)[:, 0].tolist()
    row |= {
        "staged": 1.0, "accumulators": _log(int(tiles.accumulators[0])),
        "fragment_least": _log(min(parts)),
        "fragment_most": _log(max(parts)), "vthreads": _log(prod(kernel.vthreads)),
        "statements": _log(body.outputs * body.depth), "rolled": float(body.rolled),
        "shared_bytes": _log(kernel.shared_bytes), "depth": _log(kernel.depth), "steps": _log(kernel.steps),
        "reads_per_flop": _log(body.times * slots / points), "read_cycles_per_flop": _log(body.times * cycles / points),
        "store_conflicts": float(copies.conflicts.max()),
        "fetches": _log(int(copies.rounds.sum())),
        "fetch_vector": _log(int(copies.vector.max())),
        "moved_per_flop": _log(float(copies.moved.sum()) * rounds / flops),
        "requested_per_flop": _log(float(copies.requested.sum()) * rounds / flops),
        "sector_bytes_per_flop": _log(of_step * rounds / flops), "run_first": _log(lengths[0]),
        "run_last": _log(lengths[-1]), "output_sectors": float(store_sectors(table, warp, sector)[0]),
        "output_run": _log(kernel.block[last]),
    }  # fmt: skip
    return np.array([row[name] for name in KERNEL_NAMES])


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


#: Features of a CPU plan.
NAMES = _names()


def plan_features(ranked: RankedPlan, device: DeviceSpec) -> np.ndarray:
    """Return one row of ``NAMES`` for the nest of a plan with the longest predicted time; counts are logarithms.

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
    at = max(range(len(estimates)), key=lambda n: estimates[n].seconds)
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


# -- training ---------------------------------------------------------------------------------------------------------

OBJECTIVES = {"rank": "rank:pairwise", "regression": "reg:squarederror"}
#: Parameters of the booster: small, so that leaving out each operator in turn takes seconds.
PARAMETERS = {
    "max_depth": 7, "eta": 0.1, "subsample": 0.8, "colsample_bytree": 0.8, "tree_method": "hist", "nthread": 1,
    "seed": 0, "verbosity": 0,
}  # fmt: skip
ROUNDS = 200


def available() -> bool:
    """Return True if xgboost can be imported."""
    try:
        import xgboost  # noqa: F401
    except ImportError:
        return False
    return True


@dataclass(frozen=True)
class Model:
    """A trained model; a higher score means faster, unless it was trained on something else."""

    booster: Any

    @classmethod
    def train(cls, rows: np.ndarray, labels: np.ndarray, objective: str, groups: Sequence[int] = ()) -> Model:
        """Train on rows of features and their labels; an order holds within a group of rows, given by their sizes.

        Raises
        ------
        UsageError
            xgboost is not installed, or the objective is unknown.
        """
        if objective not in OBJECTIVES:
            raise UsageError(f"no objective {objective!r}", remedy=f"choose from {', '.join(OBJECTIVES)}")
        try:
            import xgboost
        except ImportError as error:
            raise UsageError("the baseline needs xgboost", remedy="pip install 'roller-tvm[xgboost]'") from error
        data = xgboost.DMatrix(rows, label=labels)
        if objective == "rank":
            data.set_group(list(groups) or [len(labels)])
        parameters = {**PARAMETERS, "objective": OBJECTIVES[objective]}
        return cls(xgboost.train(parameters, data, num_boost_round=ROUNDS))

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """Return one score for each row of features."""
        import xgboost

        return np.asarray(self.booster.predict(xgboost.DMatrix(rows)))


def train(seconds: Sequence[float], rows: np.ndarray, objective: str = "rank") -> Model | None:
    """Return a model trained on measurements of one operator, or None if there are not two different times."""
    worked = [s for s in seconds if math.isfinite(s)]
    if len(worked) < 2 or min(worked) == max(worked):
        return None
    return Model.train(rows, labels_of(np.asarray(seconds)), objective)


def labels_of(seconds: np.ndarray) -> np.ndarray:
    """Return the best time over each plan's time, 0 for a plan that did not work, as AutoTVM labels throughputs."""
    worked = seconds[np.isfinite(seconds)]
    return worked.min() / seconds if len(worked) else np.zeros(len(seconds))


def left_out(groups: Sequence[str], rows: np.ndarray, slowdowns: np.ndarray) -> np.ndarray:
    """Predict every row's slowdown by a model trained on the other groups; NaN if there is no other group.

    An operator's slowdown is its time over the time of its FLOPs at the device's peak.
    """
    names = np.asarray(groups)
    result = np.full(len(rows), np.nan)
    for name in dict.fromkeys(groups):
        own = names == name
        if not own.all():
            model = Model.train(rows[~own], np.log(slowdowns[~own]), "regression")
            result[own] = np.exp(model.scores(rows[own]))
    return result


def rank_plans(plans: Sequence[RankedPlan], device: DeviceSpec, model: Model) -> list[RankedPlan]:
    """Return constructed plans in the order of a model's scores instead of their predicted times."""
    scores = model.scores(np.array([plan_features(p, device) for p in plans]))
    return [plans[n] for n in sorted(range(len(plans)), key=lambda n: -float(scores[n]))]


# -- measurements kept in files ---------------------------------------------------------------------------------------

#: Files that the XGBoost baseline of ``roller-tvm compare`` leaves for each operator.
PATTERN = "measured.*.json"


@dataclass(frozen=True, eq=False)
class Measured:
    """Measurements of one operator.

    Parameters
    ----------
    operator, device : str
    rows : array
        Features (``plan_features.NAMES``), one row per plan.
    seconds : array
        Time of each plan in seconds, infinity if it did not work.
    """

    operator: str
    device: str
    rows: np.ndarray
    seconds: np.ndarray


def read_measured(paths: Iterable[Path], device: DeviceSpec | None = None) -> list[Measured]:
    """Read measurement files, given as files or as folders that are searched for them.

    Parameters
    ----------
    device : DeviceSpec or None
        Device of the measurements, or None for any.

    Raises
    ------
    BadInput
        A file is no measurement file, or has other features or another device; or no file was found.
    """
    found = []
    given = list(paths)
    for path in given:
        for file in sorted(path.rglob(PATTERN)) if path.is_dir() else [path]:
            found.append(_read(file, device))
    if not found:
        where = ", ".join(map(str, given))
        raise BadInput("holds no measurements", where, "run 'roller-tvm compare --tuners xgboost' first")
    return found


def machine_of(device: DeviceSpec) -> str:
    """Return a description of a device that distinguishes machines of one device name (every CPU is named 'cpu').

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> machine_of(load_device("a100"))
    'NVIDIA A100 SXM4 80GB, sm_80, 108 units'
    """
    vectors = f" with {8 * device.vector_bytes} bit vectors" if device.kind == "cpu" else ""
    words = "threads" if device.kind == "cpu" else "units"
    return f"{device.title}, {device.arch}{vectors}, {device.units} {words}"


def _read(file: Path, device: DeviceSpec | None) -> Measured:
    try:
        data = json.loads(file.read_text())
        names, rows = data["names"], data["rows"]
        seconds = np.array([np.inf if r[0] is None else float(r[0]) for r in rows])
        features = np.array([r[1:] for r in rows], float)
        operator, measured_on, arch = str(data["operator"]), str(data["device"]), str(data.get("arch", ""))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise BadInput(f"is no file of measurements ({error})", str(file), "give one that 'compare' wrote") from error
    if names != ["seconds", *NAMES]:
        raise BadInput("has other features than these plans", str(file), "measure again with this version")
    if device is None:
        return Measured(operator, measured_on, features, seconds)
    there, here = f"{measured_on} {arch}".strip(), f"{device.name} {device.arch if arch else ''}".strip()
    if "machine" in data:  # older files do not say it
        there, here = str(data["machine"]), machine_of(device)
    if there != here:
        raise BadInput(f"was measured on {there}, the plans are for {here}", str(file), "give files of that device")
    return Measured(operator, measured_on, features, seconds)


def train_measured(measured: Sequence[Measured], objective: str = "rank", leave_out: str = "") -> Model:
    """Train one model on several operators, except `leave_out`.

    Raises
    ------
    BadInput
        No other operator was measured.
    UsageError
        xgboost is not installed.
    """
    unknown = _normalized(leave_out)
    others = [m for m in measured if _normalized(m.operator) != unknown]
    chosen = [m for m in others if len(m.rows) > 1 and len(set(labels_of(m.seconds))) > 1]
    if not chosen:
        raise BadInput("nothing to learn from: no other operator was measured", leave_out, "measure others first")
    rows, labels = (np.concatenate(v) for v in ([m.rows for m in chosen], [labels_of(m.seconds) for m in chosen]))
    return Model.train(rows, labels, objective, [len(m.rows) for m in chosen])


def _normalized(title: str) -> object:
    """Return a key of an operator's title, the same for any order of words, aliases and left-out defaults."""
    name, _, params = title.partition(" ")
    try:
        return lookup(name).name, tuple(sorted((k, str(v)) for k, v in normalize(name, parse_params(params)).items()))
    except RollerError:  # a task of a model
        return title


def learned_order(folder: Path, title: str, device: DeviceSpec) -> Callable[[list[RankedPlan]], list[RankedPlan]]:
    """Return a function that ranks plans by a model trained on a comparison's measurements of other operators."""
    model = train_measured(read_measured([folder], device), leave_out=title)
    return lambda plans: rank_plans(plans, device, model)


def rank_construction(construction: Construction, device: DeviceSpec, folder: Path, title: str = "") -> Construction:
    """Return a construction whose plans are ranked by a model trained on a folder of measurements.

    Parameters
    ----------
    title : str
        Title of the operator; its own measurements are not learned from.
    """
    return replace(construction, plans=tuple(learned_order(folder, title, device)(list(construction.plans))))
