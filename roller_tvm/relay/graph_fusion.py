"""What ``FuseRTasks`` made of a Relay model, in words, pictures and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.rammer import FusionPlan, draw, explain_fusion


@dataclass(frozen=True)
class GraphFusion:
    """What ``FuseRTasks`` made of a model.

    Parameters
    ----------
    device : DeviceSpec
    plans : tuple of FusionPlan
        One after the other: between them are operators that cannot be planned.
    symbols : tuple of tuple of str
        For each part of each plan the function that is its kernel; '' where its operators stay as they were.
    outside : tuple of (operator, reason)
        What is in no plan.
    refused : tuple of str
        Why plans that were to be fused are not.
    """

    device: DeviceSpec
    plans: tuple[FusionPlan, ...]
    symbols: tuple[tuple[str, ...], ...]
    outside: tuple[tuple[str, str], ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def kernels(self) -> int:
        """Parts of plans that are one kernel."""
        return sum(bool(s) for symbols in self.symbols for s in symbols)

    @property
    def launches(self) -> int:
        """Kernels that all plans are."""
        return sum(p.launches for p in self.plans)

    @property
    def sequential_launches(self) -> int:
        """Kernels that their operators are, each by itself."""
        return sum(p.sequential_launches for p in self.plans)

    @property
    def predicted_seconds(self) -> float:
        return sum(p.seconds for p in self.plans)

    @property
    def sequential_seconds(self) -> float:
        return sum(p.sequential_seconds for p in self.plans)

    @property
    def speedup(self) -> float:
        return self.sequential_seconds / self.predicted_seconds if self.predicted_seconds else 1.0

    def __str__(self) -> str:
        head = (f"FuseRTasks: {self.launches} kernels instead of {self.sequential_launches}, "
                f"{self.predicted_seconds * 1e6:.1f} us against {self.sequential_seconds * 1e6:.1f} us predicted, "
                f"{self.kernels} plans")
        lines = [head, *(line for p in self.plans for line in str(p).splitlines()[1:])]
        return "\n".join([*lines, *self._others()])

    def explain(self) -> str:
        """The report of ``--explain``."""
        head = str(self).splitlines()[0]
        return "\n".join([head, *(f"\n{explain_fusion(plan)}" for plan in self.plans), "", *self._others()]).strip()

    def pictures(self) -> tuple[str, ...]:
        """The operators of each plan over time, before and after, as SVG."""
        return tuple(draw(plan, self.device) for plan in self.plans)

    def _others(self) -> list[str]:
        lines = [f"  outside of every plan: {name}: {why}" for name, why in self.outside]
        return [*lines, *(f"  refused: {line}" for why in self.refused for line in why.splitlines())]

    def to_json(self) -> dict[str, Any]:
        return {
            "device": self.device.to_json(), "plans": [p.to_json() for p in self.plans],
            "symbols": [list(s) for s in self.symbols], "outside": [list(o) for o in self.outside],
            "refused": list(self.refused),
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GraphFusion:
        plans = tuple(map(FusionPlan.from_json, data["plans"]))
        outside = tuple((name, why) for name, why in data["outside"])
        device = DeviceSpec.from_json(data["device"])
        return cls(device, plans, tuple(map(tuple, data["symbols"])), outside, tuple(data["refused"]))
