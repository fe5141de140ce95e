"""Results of a construction: ranked plans, and why the others were rejected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..micro_perf.estimate import Estimate
from ..roller.alignment import Rejection, summarise
from ..roller.rprogram import Plan


@dataclass(frozen=True)
class RankedPlan:
    """One plan with its predicted time."""

    plan: Plan
    estimate: Estimate

    @property
    def seconds(self) -> float:
        return self.estimate.seconds

    def __str__(self) -> str:
        e = self.estimate
        return f"{e.seconds * 1e6:.1f} us, {e.gflops:.0f} GFLOP/s, {e.bound} bound\n{self.plan}"

    def to_json(self) -> dict[str, Any]:
        return {"plan": self.plan.to_json(), "estimate": self.estimate.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RankedPlan:
        return cls(Plan.from_json(data["plan"]), Estimate.from_json(data["estimate"]))


@dataclass(frozen=True)
class Construction:
    """The K best plans by predicted time, best first, and the rejected candidates.

    Parameters
    ----------
    plans : tuple of RankedPlan
    rejections : sequence of Rejection
    eps : float
        Share of padding that had to be allowed to find K plans (rule 4).
    considered : int
        Number of candidates considered.
    """

    plans: tuple[RankedPlan, ...]
    rejections: Sequence[Rejection] = ()
    eps: float = 0.0
    considered: int = 0

    @property
    def best(self) -> RankedPlan:
        return self.plans[0]

    def rejected(self) -> str:
        """Return the rejections as text, grouped by rule, with an example each."""
        return summarise(self.rejections)

    def __str__(self) -> str:
        return f"{len(self.plans)} plans of {self.considered} candidates, eps {self.eps:g}\n{self.best}"
