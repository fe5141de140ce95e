"""Train a model on files of earlier searches, without measuring, to rank constructed plans.

The XGBoost baseline of ``roller-tvm compare`` leaves such a file, ``measured.TRIALS.json``, for each operator.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..device import DeviceSpec
from ..errors import BadInput, RollerError, UsageError
from ..ir.operators import lookup, normalize, parse_params
from ..planner.construction import Construction
from .online import OBJECTIVES, Model, rank_plans
from .plan_features import NAMES
from .xgb import PARAMETERS, ROUNDS

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

    @property
    def labels(self) -> np.ndarray:
        """Best time over each plan's time; 0 for a plan that did not work."""
        worked = self.seconds[np.isfinite(self.seconds)]
        return worked.min() / self.seconds if len(worked) else np.zeros(len(self.seconds))


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
    if objective not in OBJECTIVES:
        raise UsageError(f"no objective {objective!r}", remedy=f"choose from {', '.join(OBJECTIVES)}")
    unknown = _normalized(leave_out)
    others = [m for m in measured if _normalized(m.operator) != unknown]
    chosen = [m for m in others if len(m.rows) > 1 and len(set(m.labels)) > 1]
    if not chosen:
        raise BadInput("nothing to learn from: no other operator was measured", leave_out, "measure others first")
    try:
        import xgboost
    except ImportError as error:
        raise UsageError("the baseline needs xgboost", remedy="pip install 'roller-tvm[xgboost]'") from error
    rows, labels = np.concatenate([m.rows for m in chosen]), np.concatenate([m.labels for m in chosen])
    data = xgboost.DMatrix(rows, label=labels)
    if objective == "rank":
        data.set_group([len(m.rows) for m in chosen])
    booster = xgboost.train({**PARAMETERS, "objective": OBJECTIVES[objective]}, data, num_boost_round=ROUNDS)
    return Model(booster, objective)


def _normalized(title: str) -> object:
    """Return a key of an operator's title, the same for any order of words, aliases and left-out defaults."""
    name, _, params = title.partition(" ")
    try:
        return lookup(name).name, tuple(sorted((k, str(v)) for k, v in normalize(name, parse_params(params)).items()))
    except RollerError:  # a task of a model
        return title


def rank_construction(construction: Construction, device: DeviceSpec, folder: Path, title: str = "") -> Construction:
    """Return a construction whose plans are ranked by a model trained on a folder of measurements.

    Parameters
    ----------
    title : str
        Title of the operator; its own measurements are not learned from.
    """
    model = train_measured(read_measured([folder], device), leave_out=title)
    return replace(construction, plans=tuple(rank_plans(construction.plans, device, model)))
