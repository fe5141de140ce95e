"""Plans kept on disk, so that the next process need not construct them again (no TVM).

A plan is found by its operator, device, features, number of plans and the planner's own code (`disk_cache.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from .. import foreign
from ..device import DeviceSpec
from ..disk_cache import VARIABLE as VARIABLE
from ..disk_cache import DiskCache, code_version, is_off
from ..errors import UnsupportedOperator
from ..folders import cache_folder
from ..ir import TensorExpression
from ..roller.features import NO_FEATURES, Features
from .construct import construct
from .construction import Construction, RankedPlan

#: Size of the file, bytes: some ten thousand operators.
PLANS_BYTES = 64 * 2**20
#: Folders whose code decides what a plan is.
CODE = ("ir", "roller", "micro_perf", "recipes", "planner")


class PlanCache:
    """A file of plans.

    Parameters
    ----------
    folder : Path
        Made if it is absent; used only if it belongs to this user and nobody else may write to it.
    limit_bytes : int

    Examples
    --------
    >>> import tempfile
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.ir.operators import matmul
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache = PlanCache(Path(folder))
    ...     first, again = (cache.construct(matmul(m=64, n=64, k=64), load_device("v100"), 1) for _ in range(2))
    >>> first.best == again.best
    True
    """

    def __init__(self, folder: Path, limit_bytes: int = PLANS_BYTES) -> None:
        path, remade = folder / "plans.sqlite", "plans are constructed again"
        self.disk = DiskCache(path, "plans of operators", remade, limit_bytes, lambda: version())

    def construct(
        self, expression: TensorExpression, device: DeviceSpec, top: int = 10, features: Features = NO_FEATURES
    ) -> Construction:
        """Return `planner.construct`'s plans, from the file if they are there; rejections are not kept.

        Raises
        ------
        UnsupportedOperator
            As `planner.construct` does; kept too.
        """
        key = _key(expression, device, top, features)
        if (known := self._get(key)) is not None:
            with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):  # an entry that says no plan
                return _read(known, expression.name)
            self.disk.forget(key)
        try:
            found = construct(expression, device, top, features)
        except UnsupportedOperator as error:
            self._put(key, {"unsupported": [error.what, error.where, error.remedy], "name": expression.name})
            raise
        self._put(key, {"plans": [p.to_json() for p in found.plans], "eps": found.eps, "considered": found.considered})
        return replace(found, rejections=())

    def _get(self, key: str) -> Any:
        """Return the value of a key, or None."""
        kept = self.disk.get(key)
        with contextlib.suppress(ValueError):
            return None if kept is None else foreign.loads(kept.decode())
        self.disk.forget(key)
        return None

    def _put(self, key: str, value: Any) -> None:
        self.disk.put(key, json.dumps(value, separators=(",", ":")).encode())


class NoCache:
    """A cache that keeps nothing."""

    def construct(
        self, expression: TensorExpression, device: DeviceSpec, top: int = 10, features: Features = NO_FEATURES
    ) -> Construction:
        """Return `planner.construct`'s plans."""
        return construct(expression, device, top, features)


def plan_cache() -> PlanCache | NoCache:
    """Return this user's cache, or one that keeps nothing if $ROLLER_PLAN_CACHE says "off"."""
    if is_off():
        return NoCache()
    return _cache_in(cache_folder())


@lru_cache(maxsize=8)
def _cache_in(folder: Path) -> PlanCache:
    return PlanCache(folder)


def version() -> str:
    """Return sixteen hexadecimal digits of the planner's code."""
    return code_version(*CODE)


def _key(expression: TensorExpression, device: DeviceSpec, top: int, features: Features) -> str:
    """Return the digest of a question; the operator's name does not count."""
    asked = expression.to_json()
    del asked["name"]
    words = [asked, _digest(device), device.name, top, features.to_json()]
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:32]


@lru_cache(maxsize=64)
def _digest(device: DeviceSpec) -> str:
    return device.digest()


def _read(value: Any, name: str) -> Construction:
    """Return a kept construction, of an operator of this name."""
    if "unsupported" in value:
        what, where, remedy = value["unsupported"]
        raise UnsupportedOperator(what, where.replace(value["name"], name, 1), remedy)
    plans = tuple(_named(RankedPlan.from_json(data), name) for data in value["plans"])
    if not plans:
        raise ValueError("no plan")
    return Construction(plans, (), value["eps"], value["considered"])


def _named(ranked: RankedPlan, name: str) -> RankedPlan:
    if ranked.plan.expression.name == name:
        return ranked
    return replace(ranked, plan=replace(ranked.plan, expression=replace(ranked.plan.expression, name=name)))
