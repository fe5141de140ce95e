"""Reports: a plan in words, with its rKernels and why, how full the device is, how much fusing saves; a model's plans.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..device import DeviceSpec
from .draw import draw
from .fusion_plan import FusionPlan, Part
from .memory import size
from .rtask import RTask
from .simulation import simulate


def explain_fusion(plan: FusionPlan) -> str:
    """Return the report of ``--explain`` for a plan of a graph.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.rammer import DataFlowGraph, Phase, RKernel, ROperator, plan_graph
    >>> kernel = RKernel("k", (Phase(40, 5e-6, 5e-6),), 5e-6)
    >>> graph = DataFlowGraph((ROperator("a", (kernel,)), ROperator("b", (kernel,))))
    >>> print(explain_fusion(plan_graph(graph, load_device("v100"), "wavefront")).splitlines()[0])
    2 operators in 1 kernels instead of 2 on v100, launched from a stream: 7.6 us against 15.2 us predicted, 2.00x
    """
    operators = sum(len(p.kernels) for p in plan.parts)
    lines = [
        f"{operators} operators in {plan.launches} kernels instead of {plan.sequential_launches} on {plan.device}, "
        f"launched from a {plan.launch}: {plan.seconds * 1e6:.1f} us against {plan.sequential_seconds * 1e6:.1f} us "
        f"predicted, {plan.speedup:.2f}x",
        f"policy {plan.policy}; {sum(p.program is not None for p in plan.parts)} of {len(plan.parts)} plans are fused",
    ]
    if plan.limit_bytes:
        lines.append(f"intermediate buffers: {size(plan.peak_bytes)} alive at most, {size(plan.sequential_peak_bytes)} "
                     f"one by one, {size(plan.limit_bytes)} allowed")
    for number, part in enumerate(plan.parts):
        lines += ["", *_part(number, part)]
    return "\n".join(lines)


def _part(number: int, part: Part) -> list[str]:
    names = ", ".join(o for o, _ in part.kernels)
    if not part.program:
        why = "one kernel anyway" if part.launches == 1 else "fusing them is not predicted to pay"
        head = f"  {part.launches} kernels, {part.seconds * 1e6:.1f} us"
        told = [f"  {reason}" for reason in part.reasons]
        return [f"plan {number}: {names}", *([head, *told] if told else [f"{head}: {why}"])]
    program = part.program
    device, line = program.device, simulate(program)
    costs = device.costs
    launches = part.sequential_launches - part.launches
    ends = {o: max(i.end for i in line.intervals if i.task.operator == o) for o, _ in part.kernels}
    last = max(ends, key=lambda o: ends[o])
    lines = [
        f"plan {number}: {names}",
        f"  {device}",
        f"  {program.tasks} rTasks on {program.used} of {device.veus} vEUs, "
        + (f"{program.barriers} barriers" if program.waits else "side by side, none waits for another"),
        *(f"  wave {wave}: {', '.join(names)}" for wave, names in part.by_wave.items()),
        f"  {part.seconds * 1e6:.1f} us against {part.sequential_seconds * 1e6:.1f} us one by one "
        f"({part.sequential_seconds / part.seconds:.2f}x): {launches} launches of {costs.launch_seconds * 1e6:.1f} us "
        f"saved; vEUs busy {line.busy(program.used):.0%} of the time; {last} ends last",
    ]
    waited = _waiting(part)
    if waited:
        lines.append(f"  vEUs wait {waited * 1e6:.2f} us each at barriers, on average")
    if program.waits and not device.regions:
        lines.append(f"  blocks wait for one another, so the device has to have {device.units} units; name the card "
                     "where it has fewer")
    lines += [f"  {reason}" for reason in part.reasons]
    for operator, kernel in part.kernels:
        start = min(i.start for i in line.intervals if i.task.operator == operator)
        lines.append(f"    {operator}: {kernel.name}, {start * 1e6:.1f} to {ends[operator] * 1e6:.1f} us, {kernel}")
    return lines


def _waiting(part: Part) -> float:
    """Return the seconds that a vEU of a plan spends between rTasks, on average."""
    assert part.program is not None
    line = simulate(part.program)
    ends: dict[int, float] = {}
    total = 0.0
    for interval in line.intervals:
        assert isinstance(interval.task, RTask)
        total += max(0.0, interval.start - ends.get(interval.veu, 0.0))
        ends[interval.veu] = interval.end
    return total / max(1, part.program.used)


@dataclass(frozen=True)
class FusedRegion:
    """The outcome of fusing the calls of a region.

    Parameters
    ----------
    plan : FusionPlan
        Parts that could not be made one kernel are cut up, or stay one by one.
    functions : tuple of str
        The function of each part's kernel; '' if the part's calls stay as they were.
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
class ModelFusion:
    """The report of ``FuseRTasks`` on a model, which each TVM line puts into words.

    Parameters
    ----------
    regions : list of FusedRegion
        Regions in the order in which they run; the operators between them cannot be planned.
    outside : list of (name, reason)
        Operators in no plan, which stay as they were.
    """

    device: DeviceSpec | None = None
    regions: list[FusedRegion] = field(default_factory=list)
    outside: list[tuple[str, str]] = field(default_factory=list)

    @property
    def plans(self) -> tuple[FusionPlan, ...]:
        return tuple(region.plan for region in self.regions)

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
        """Number of kernel launches of all plans."""
        return sum(p.launches for p in self.plans)

    @property
    def sequential_launches(self) -> int:
        """Number of kernel launches of their operators one by one."""
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

    def headline(self) -> str:
        return (f"FuseRTasks: {self.launches} kernels instead of {self.sequential_launches}, "
                f"{self.predicted_seconds * 1e6:.1f} us against {self.sequential_seconds * 1e6:.1f} us predicted, "
                f"{len(self.functions)} plans")

    def pictures(self) -> tuple[str, ...]:
        """Return one SVG per plan: its operators over time, before and after."""
        return tuple(draw(plan, self.device) for plan in self.plans) if self.device is not None else ()
