"""The report of ``FuseRTasks`` on a Relay model, as text, pictures and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.rammer import FusionPlan, draw, explain_fusion


@dataclass(frozen=True)
class GraphFusion:
    """The report of ``FuseRTasks`` on a model.

    Parameters
    ----------
    device : DeviceSpec
    plans : tuple of FusionPlan
        Plans in the order in which they run; the operators between them cannot be planned.
    symbols : tuple of tuple of str
        The function of each part's kernel, per plan; '' if the part's operators stay separate.
    outside : tuple of (operator, reason)
        Operators in no plan.
    refused : tuple of str
        Why planned parts were not fused.
    """

    device: DeviceSpec
    plans: tuple[FusionPlan, ...]
    symbols: tuple[tuple[str, ...], ...]
    outside: tuple[tuple[str, str], ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def kernels(self) -> int:
        """Number of parts that became one kernel."""
        return sum(bool(s) for symbols in self.symbols for s in symbols)

    @property
    def launches(self) -> int:
        """Number of kernel launches of all plans."""
        return sum(p.launches for p in self.plans)

    @property
    def sequential_launches(self) -> int:
        """Number of kernel launches without fusion."""
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
        """Return the report of ``--explain``."""
        head = str(self).splitlines()[0]
        return "\n".join([head, *(f"\n{explain_fusion(plan)}" for plan in self.plans), "", *self._others()]).strip()

    def pictures(self) -> tuple[str, ...]:
        """Return one SVG per plan: its operators over time, before and after."""
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
