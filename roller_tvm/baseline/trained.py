"""Training without measuring, on files of what earlier searches measured, so that constructed plans can be ranked.

The files are ``measured.TRIALS.json``, which the XGBoost baseline of ``roller-tvm compare`` leaves for each operator.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..device import DeviceSpec
from ..errors import BadInput, RollerError, UsageError
from ..expr.operators import lookup, normalize, parse_params
from ..plan.candidates import Construction
from .online import OBJECTIVES, Model, rank_plans
from .plan_features import NAMES
from .xgb import PARAMETERS, ROUNDS

PATTERN = "measured.*.json"


@dataclass(frozen=True, eq=False)
class Measured:
    """What was measured of one operator.

    Parameters
    ----------
    operator, device : str
    rows : array
        Features (``plan_features.NAMES``), a row each.
    seconds : array
        Infinite where a plan did not work.
    """

    operator: str
    device: str
    rows: np.ndarray
    seconds: np.ndarray

    @property
    def labels(self) -> np.ndarray:
        """Best time over each one's; 0 for what did not work."""
        worked = self.seconds[np.isfinite(self.seconds)]
        return worked.min() / self.seconds if len(worked) else np.zeros(len(self.seconds))


def read_measured(paths: Iterable[Path], device: DeviceSpec | None = None) -> list[Measured]:
    """Files, and those below folders.

    Parameters
    ----------
    device : DeviceSpec or None
        What all of it must have been measured on.

    Raises
    ------
    BadInput
        A file that is none, or is of other features or another device; nothing at all.
    """
    found = []
    given = list(paths)
    for path in given:
        for file in sorted(path.rglob(PATTERN)) if path.is_dir() else [path]:
            found.append(_read(file, device))
    if not found:
        where = ", ".join(map(str, given))
        raise BadInput("holds nothing that was measured", where, "run 'roller-tvm compare --tuners xgboost' first")
    return found


def machine_of(device: DeviceSpec) -> str:
    """What tells machines apart whose devices have the same name, as those of all CPUs have: 'cpu'.

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
        raise BadInput(f"is no file of what was measured ({error})", str(file), "give one of 'compare'") from error
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
    """One model of several operators; `leave_out` is one that it is not to know.

    Raises
    ------
    BadInput
        Nothing is left to learn from.
    UsageError
        xgboost is not installed.
    """
    if objective not in OBJECTIVES:
        raise UsageError(f"no objective {objective!r}", remedy=f"one of {', '.join(OBJECTIVES)}")
    unknown = _normalized(leave_out)
    others = [m for m in measured if _normalized(m.operator) != unknown]
    chosen = [m for m in others if len(m.rows) > 1 and len(set(m.labels)) > 1]
    if not chosen:
        raise BadInput("there is nothing to learn from but the operator itself", leave_out, "measure others first")
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
    """A title whatever the order of its words, with aliases resolved and defaults filled in."""
    name, _, params = title.partition(" ")
    try:
        return lookup(name).name, tuple(sorted((k, str(v)) for k, v in normalize(name, parse_params(params)).items()))
    except RollerError:  # a task of a model
        return title


def rank_construction(construction: Construction, device: DeviceSpec, folder: Path, title: str = "") -> Construction:
    """A construction with its plans in the order of a model that has learned from a folder.

    Parameters
    ----------
    title : str
        Of the operator, which is left out if it was measured too.
    """
    model = train_measured(read_measured([folder], device), leave_out=title)
    return replace(construction, plans=tuple(rank_plans(construction.plans, device, model)))
