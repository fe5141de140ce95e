"""The report of FuseRTasks on a module: plans of its regions, calls outside of every plan, refused plans."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..device import DeviceSpec
from ..rammer import FusionPlan, draw, explain_fusion
from ..rammer.code import FusedKernel


@dataclass(frozen=True)
class FusedRegion:
    """The outcome of fusing the calls of a region.

    Parameters
    ----------
    name : str
        See `rtasks.Region`.
    plan : FusionPlan
        Parts that could not be made one kernel are cut up, or stay one by one.
    functions : tuple of str
        For each part the function that is its kernel; '' where its calls stay as they were.
    refused : tuple of str
        Why plans, or kernels of operators, were refused.
    """

    name: str
    plan: FusionPlan
    functions: tuple[str, ...]
    refused: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"{self.name}: {self.plan}", *(f"  refused: {why}" for why in self.refused)])


@dataclass
class Fusion:
    """The report of the pass.

    Parameters
    ----------
    device : DeviceSpec or None
    regions : list of FusedRegion
    outside : list of (name, reason)
        What is in no plan, and stays as it was.
    kernels : dict
        Function -> its `FusedKernel`, for a GPU.
    seconds : float
        The pass took.
    """

    device: DeviceSpec | None = None
    regions: list[FusedRegion] = field(default_factory=list)
    outside: list[tuple[str, str]] = field(default_factory=list)
    kernels: dict[str, FusedKernel] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def functions(self) -> tuple[str, ...]:
        """Functions that are plans."""
        return tuple(name for region in self.regions for name in region.functions if name)

    @property
    def refused(self) -> tuple[str, ...]:
        """Why plans, or kernels of operators, were refused."""
        return tuple(why for region in self.regions for why in region.refused)

    @property
    def launches(self) -> int:
        """Kernels that the planned operators are now."""
        return sum(region.plan.launches for region in self.regions)

    @property
    def sequential_launches(self) -> int:
        """Kernels that they are one by one."""
        return sum(region.plan.sequential_launches for region in self.regions)

    @property
    def predicted_seconds(self) -> float:
        return sum(region.plan.seconds for region in self.regions)

    @property
    def sequential_seconds(self) -> float:
        return sum(region.plan.sequential_seconds for region in self.regions)

    def __str__(self) -> str:
        head = (f"FuseRTasks: {self.launches} kernels instead of {self.sequential_launches}, "
                f"{self.predicted_seconds * 1e6:.1f} us against {self.sequential_seconds * 1e6:.1f} us predicted, "
                f"{len(self.functions)} plans in {self.seconds:.1f} s")
        told = [line for region in self.regions for line in str(region).splitlines()]
        told += [f"{name}: outside of every plan, {reason}" for name, reason in self.outside]
        return "\n".join([head, *(f"  {line}" for line in told)])

    def explain(self) -> str:
        """The report of ``--explain``: every plan of every region, then what is outside and what was refused."""
        lines: list[str] = []
        for region in self.regions:
            lines += [*([""] if lines else []), region.name, explain_fusion(region.plan)]
        if self.outside:
            lines += ["", "outside of every plan", *(f"  {name}: {reason}" for name, reason in self.outside)]
        if refused := [line for why in self.refused for line in why.splitlines()]:
            lines += ["", "refused", *(f"  {line}" for line in refused)]
        return "\n".join(lines)

    def pictures(self) -> tuple[str, ...]:
        """The operators of each region over time, before and after, as SVG."""
        if self.device is None:
            return ()
        return tuple(draw(region.plan, self.device) for region in self.regions)


__all__ = ["FusedRegion", "Fusion"]
