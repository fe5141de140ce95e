"""Scheduling policies: they choose the operators of each kernel, their rKernels, and the vEUs of the rTasks.

``wavefront`` is the policy of the paper (OSDI'20, section 4): for a wave that fills the device it tries the fastest
rKernels and the most efficient ones. ``front`` also tries those between, and ``by_list`` takes operators one by one,
those on the longest path first. ``horizontal`` makes kernels in which no block waits for another; they keep nothing
between launches and need no room for all their blocks. All policies only predict; a plan is dropped if it is predicted
slower than its kernels launched one by one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..device import DeviceSpec
from ..errors import BadInput, UsageError
from .cpu_region import plan_regions
from .dependences import Dependences
from .fusion_plan import FusionPlan, Part
from .memory import Live, MemoryRule, in_order, peak_bytes, size
from .placement import Placement
from .roperator import DataFlowGraph, RKernel, ROperator
from .simulation import simulate
from .task_program import TaskProgram
from .veu import LAUNCHES, Costs, VDevice

Select = Callable[[Placement, Sequence[ROperator]], "Placement | None"]
#: Plans in an order in which they may run; an operator stands alone if it fits no plan.
Plans = list[Placement | ROperator]
POLICIES = ("best", "wavefront", "front", "list", "horizontal")


def check_choices(policy: str, launch: str | None = None) -> None:
    """Raise ``UsageError`` unless the policy and the way to launch exist (None: the device's).

    Examples
    --------
    >>> check_choices("best", "stream")
    """
    for name, given, known in (("policy", policy, POLICIES), ("launch", launch or LAUNCHES[0], LAUNCHES)):
        if given not in known:
            raise UsageError(f"{name} must be one of {', '.join(known)} (got {given!r})", name, f"give {known[0]!r}")


def plan_graph(
    graph: DataFlowGraph, device: DeviceSpec, policy: str = "best", launch: str = "stream",
    kept: Collection[str] = (), resident_bytes: int = 0,
) -> FusionPlan:  # fmt: skip
    """Fuse the operators of a graph into as few kernels as are predicted to pay.

    Parameters
    ----------
    policy : str
        'wavefront', 'front', 'list', or the 'best' of the last two; 'horizontal' if no block may wait for another.
        A CPU has one policy, ``regions.plan_regions``.
    launch : str
        How kernels are launched, 'stream' or 'graph': fusing saves this cost.
    kept : collection of str
        Operators whose results are read outside of the graph, although others of the graph read them too.
    resident_bytes : int
        Bytes of the device's memory that others use: weights, inputs, anything else alive meanwhile.

    Returns
    -------
    FusionPlan
        Never slower, by the model, than every operator's fastest kernels one after the other; and within the memory
        that ``memory.MemoryRule`` gives it. If a policy's order needs more, the operators stay in the graph's order.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.ir.operators import matmul
    >>> from roller_tvm.rammer.rkernels import roperator
    >>> v100 = load_device("v100")
    >>> one = roperator("dense0", matmul(m=1, n=512, k=512), v100, top=2)
    >>> graph = DataFlowGraph(tuple(ROperator(f"dense{n}", one.kernels) for n in range(4)))
    >>> plan = plan_graph(graph, v100)
    >>> plan.launches, plan.sequential_launches, plan.speedup > 2
    (1, 8, True)
    """
    check_choices(policy, launch)
    if device.kind == "cpu":
        return plan_regions(graph, device, kept, resident_bytes)
    memory = MemoryRule.of(graph, device, kept, resident_bytes)
    work = Work(graph, device, launch, Dependences(graph), memory, frozenset(kept))
    policies: dict[str, Callable[[Work], Plans]] = {
        "wavefront": wavefront, "front": lambda w: wavefront(w, _from_front), "list": by_list, "horizontal": horizontal,
    }  # fmt: skip
    made = [(name, policies[name](work)) for name in (("front", "list") if policy == "best" else (policy,))]
    for name, plans in sorted(made, key=lambda m: sum(map(work.expected, m[1]))):
        found = _finish(name, work, plans)
        if found.peak_bytes <= memory.limit_bytes:
            return found
    # They take operators in an order of their own; in the graph's nothing is ever too much.
    order = in_order(graph)
    if policy == "horizontal":
        return _finish("one by one, in the graph's order", work, [graph.by_name[name] for name in order])
    rank = {name: -float(n) for n, name in enumerate(order)}
    return _finish("list, in the graph's order", work, by_list(work, rank))


@dataclass(frozen=True)
class Work:
    """The work of a policy: a graph to plan, for a device, within some memory; see `plan_graph`."""

    graph: DataFlowGraph
    device: DeviceSpec
    launch: str
    dependences: Dependences
    memory: MemoryRule
    kept: frozenset[str]

    @cached_property
    def costs(self) -> Costs:
        return Costs.of(self.device, self.launch)

    @property
    def empty(self) -> Placement:
        return Placement(self.device, self.dependences, self.launch)

    def plain_seconds(self, operator: ROperator) -> float:
        """Return the seconds of an operator on its own, launches included."""
        kernel = plain_kernel(operator, self.costs)
        return kernel.seconds + len(kernel.phases) * self.costs.launch_seconds

    def expected(self, plan: Placement | ROperator) -> float:
        """Return the seconds of a plan before it is a program: by its placement, or with its operators one by one."""
        if isinstance(plan, ROperator):
            return self.plain_seconds(plan)
        return min(plan.seconds, sum(self.plain_seconds(self.graph.by_name[name]) for name, _ in plan.chosen))


def wavefront(work: Work, select: Select | None = None) -> Plans:
    """Return plans by the paper's policy; an operator stands alone if it does not fit the device with any other.

    For each breadth-first wave two plans are made, the wave appended to the plan so far and the wave on its own; it
    stays appended if that takes no longer than both apart. The last plan is one of the result.

    With another way to select rKernels (`select`), plans apart count by the better of fused and one by one.
    """
    def worth(plan: Placement) -> float:
        return work.expected(plan) if select else plan.seconds

    plans: Plans = []
    empty = current = work.empty
    waves = [list(wave) for wave in reversed(work.graph.waves)]
    live, memory = Live(work.graph, work.kept), work.memory
    selected = select or _selected
    while waves:
        wave = waves.pop()
        names = [o.name for o in wave]
        alone = selected(empty, wave) if len(wave) == 1 or live.alone(names) <= memory.limit_bytes else None
        if alone is None:  # too much for one vDevice, or for the memory
            if len(wave) > 1:
                waves += [[operator] for operator in reversed(wave)]
                continue
            plans += [*([current] if current.chosen else []), wave[0]]
            current = empty
            live.close()
            live.add(names)
            live.close()
            continue
        if not current.chosen:
            current = alone
        elif (needed := live.with_(names)) > memory.limit_bytes:
            plans.append(_closed(current, names, needed, memory))
            live.close()
            current = alone
        elif (together := selected(current, wave)) and together.seconds <= worth(current) + worth(alone):
            current = together
        else:
            plans.append(current)
            live.close()
            current = alone
        live.add(names)
    return [*plans, current] if current.chosen else plans


def horizontal(work: Work) -> Plans:
    """Return breadth-first waves, each on its own, of rKernels with a single kernel: none of a wave's rTasks waits.

    An operator that is faster as several kernels, launches counted, stays on its own.
    """
    graph, memory, empty = work.graph, work.memory, work.empty
    plans: Plans = []
    waves = [list(wave) for wave in reversed(graph.waves)]
    live = Live(graph, work.kept)
    while waves:
        wave = waves.pop()
        together, apart = [], []
        for operator in wave:
            one = tuple(k for k in operator.kernels if len(k.phases) == 1)
            if one and min(k.seconds for k in one) <= work.plain_seconds(operator):
                together.append(replace(operator, kernels=one))
            else:
                apart.append(operator)
        names = [o.name for o in together]
        plan = _from_front(empty, together) if together and live.alone(names) <= memory.limit_bytes else None
        if plan is None and len(together) > 1:  # too much for one vDevice, or for the memory
            half = len(together) // 2
            waves += [[graph.by_name[o.name] for o in some] for some in (together[half:], [*together[:half], *apart])]
            continue
        plans += [plan] if plan else [graph.by_name[name] for name in names]
        plans += apart
        for group in (names, *([o.name] for o in apart)):
            live.add(group)
            live.close()
    return plans


def _closed(current: Placement, names: Iterable[str], needed: int, memory: MemoryRule) -> Placement:
    """Return a plan that ends because of the memory it keeps alive, with the reason added."""
    current.reasons += (f"ends before {', '.join(names)}: {size(needed)} would be alive, {memory}",)
    return current


def _selected(current: Placement, wave: Sequence[ROperator]) -> Placement | None:
    """Return a plan extended by a wave; None if the wave does not fit.

    Takes the fastest rKernels. If those fill the device, tries the most efficient ones too and takes the better plan.
    """
    fastest = [(o.name, o.fastest) for o in wave]
    efficient = [(o.name, o.efficient) for o in wave]
    names = ", ".join(o.name for o in wave)
    plan = _fitting(current, fastest)
    if plan and plan.device:
        width, veus = sum(k.width for _, k in fastest), plan.device.veus
        if width < veus:
            plan.reasons += (f"{names}: the fastest, {width} rTasks leave {veus - width} of {veus} vEUs idle",)
            return plan
        if efficient == fastest:
            plan.reasons += (f"{names}: the fastest, which are the most efficient too",)
            return plan
    other = _fitting(current, efficient)
    if other and (plan is None or other.seconds < plan.seconds):
        against = f"{plan.seconds * 1e6:.1f} us with the fastest" if plan else "the fastest do not fit together"
        other.reasons += (f"{names}: the most efficient, {other.seconds * 1e6:.1f} us ({against})",)
        return other
    if plan:
        against = f"{other.seconds * 1e6:.1f} us with the most efficient" if other else "the most efficient do not fit"
        plan.reasons += (f"{names}: the fastest, {plan.seconds * 1e6:.1f} us ({against})",)
    return plan


def _from_front(current: Placement, wave: Sequence[ROperator]) -> Placement | None:
    """Do the same as ``_selected``, in steps from every operator's fastest rKernel to its most efficient."""
    names = ", ".join(o.name for o in wave)
    found: list[tuple[float, int, Placement]] = []
    steps = max(len(o.front) for o in wave)
    for step in range(steps):
        chosen = [(o.name, o.front[min(step, len(o.front) - 1)]) for o in wave]
        plan = _fitting(current, chosen)
        if plan and plan.device:
            found.append((plan.seconds, step, plan))
            if not step and (width := sum(k.width for _, k in chosen)) < plan.device.veus:
                idle = f"{plan.device.veus - width} of {plan.device.veus} vEUs idle"
                plan.reasons += (f"{names}: the fastest, {width} rTasks leave {idle}",)
                return plan
    if not found:
        return None
    seconds, step, best = min(found, key=lambda f: f[:2])
    words = ", ".join(f"{s * 1e6:.1f} us with step {n}" for s, n, _ in found if n != step)
    which = "the fastest" if not step else "the most efficient" if step == steps - 1 else f"step {step} of {steps - 1}"
    best.reasons += (f"{names}: {which} from the fastest to the most efficient, {seconds * 1e6:.1f} us"
                     + (f" ({words})" if words else ""),)
    return best


def _fitting(current: Placement, chosen: Sequence[tuple[str, RKernel]]) -> Placement | None:
    try:
        return current.extended(chosen)
    except BadInput:
        return None


def by_list(work: Work, rank: Mapping[str, float] | None = None) -> Plans:
    """Return plans by list scheduling: the operator of the highest rank next, by the rKernel that ends the plan first.

    By default the rank is the length of the path to the end. A plan is closed if the next operator is predicted to do
    better without it; both sides count by the better of fused and one by one.
    """
    graph, memory = work.graph, work.memory
    rank = rank or _ranks(graph, work.costs)
    waiting = {o.name: len({e.producer for e in o.inputs}) for o in graph.operators}
    place = {o.name: n for n, o in enumerate(graph.operators)}
    ready = [(-rank[n], place[n], n) for n, count in waiting.items() if not count]
    heapq.heapify(ready)
    plans: Plans = []
    empty = current = work.empty
    sofar = 0.0  # the plan's operators one by one
    live = Live(graph, work.kept)
    while ready:
        _, _, name = heapq.heappop(ready)
        operator = graph.by_name[name]
        single = work.plain_seconds(operator)
        if current.chosen and (needed := live.with_([name])) > memory.limit_bytes:
            plans.append(_closed(current, [name], needed, memory))
            live.close()
            current, sofar = empty, 0.0
        together = _earliest(current, operator)
        apart = (min(current.seconds, sofar) if current.chosen else 0.0) + single
        if together and (not current.chosen or together.seconds <= apart):
            current, sofar = together, sofar + single
        else:
            if current.chosen:
                plans.append(current)
                live.close()
            alone = _earliest(empty, operator)
            if alone is None:
                plans.append(operator)
            current, sofar = alone or empty, single
        live.add([name])
        if not current.chosen:
            live.close()
        for reader in graph.consumers[name]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, (-rank[reader], place[reader], reader))
    return [*plans, current] if current.chosen else plans


def _earliest(current: Placement, operator: ROperator) -> Placement | None:
    found: list[tuple[float, float, Placement, RKernel]] = []
    fastest, efficient = operator.fastest, operator.efficient
    for kernel in (fastest,) if efficient is fastest else (fastest, efficient):
        if plan := _fitting(current, [(operator.name, kernel)]):
            found.append((plan.seconds, kernel.work, plan, kernel))
    if not found:
        return None
    seconds, _, best, chosen = min(found, key=lambda f: f[:2])
    words = ", ".join(f"{k.name} {s * 1e6:.1f} us" for s, _, _, k in found if k is not chosen)
    best.reasons += (f"{operator.name}: {chosen.name} ends the plan at {seconds * 1e6:.1f} us"
                     + (f" ({words})" if words else ""),)
    return best


def _ranks(graph: DataFlowGraph, costs: Costs) -> dict[str, float]:
    """Return the length in seconds of the longest path from each operator to an end."""
    rank: dict[str, float] = {}
    for operator in reversed(graph.order):
        after = max((rank[c] for c in graph.consumers[operator.name]), default=0.0)
        rank[operator.name] = after + operator.fastest.seconds + costs.signal_seconds + costs.poll_seconds
    return rank


def plain_kernel(operator: ROperator, costs: Costs) -> RKernel:
    """Return the rKernel with which an operator is fastest on its own, launches counted."""
    return min(operator.kernels, key=lambda k: k.seconds + len(k.phases) * costs.launch_seconds)


def _too_big(operator: ROperator, device: DeviceSpec) -> tuple[str, ...]:
    """Return why an operator's first rKernel does not fit on a vDevice; nothing if any of its rKernels does."""
    why: tuple[str, ...] = ()
    for kernel in operator.kernels:
        try:
            VDevice.of(device, [kernel])
        except BadInput as error:
            why = why or (f"operator '{operator.name}' stays by itself: {error.what} ({error.where})",)
        else:
            return ()
    return why


def _finish(policy: str, work: Work, plans: Plans) -> FusionPlan:
    """Return the plans as programs; those not predicted to pay become kernels one after the other."""
    graph, memory = work.graph, work.memory
    parts = []
    made: dict[Hashable, tuple[TaskProgram, float]] = {}
    for plan in plans:
        operators = [plan] if isinstance(plan, ROperator) else [graph.by_name[name] for name, _ in plan.chosen]
        plain = tuple((o.name, plain_kernel(o, work.costs)) for o in operators)
        sequential = sum(map(work.plain_seconds, operators))
        if isinstance(plan, Placement) and sum(len(k.phases) for _, k in plan.chosen) > 1:
            if (known := made.get(pattern := plan.pattern())) is None:
                program = plan.program()
                known = made[pattern] = program, simulate(program).makespan
            program, seconds = known
            if seconds < sequential:
                program = program.of_others(plan.chosen)
                waves = tuple(graph.depth[name] for name, _ in plan.chosen)
                parts.append(Part(plan.chosen, seconds, sequential, program, plan.reasons, plain, waves))
                continue
        why = _too_big(plan, work.device) if isinstance(plan, ROperator) else ()
        parts.append(Part(plain, sequential, sequential, reasons=why,
                          waves=tuple(graph.depth[o.name] for o in operators)))
    groups = [group for part in parts for group in part.launched]
    peak = peak_bytes(graph, groups, work.kept)
    return FusionPlan(work.device.name, policy, work.launch, tuple(parts), peak, memory.peak_bytes, memory.limit_bytes)
