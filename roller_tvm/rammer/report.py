"""A plan in words: the fused operators, their rKernels and why, how full the device is, how much fusing saves."""

from __future__ import annotations

from .fusion import FusionPlan, Part
from .memory import size
from .program import RTask
from .timing import simulate


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
