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
from dataclasses import replace

from ..device import DeviceSpec
from ..errors import BadInput, UsageError
from .depend import Dependences
from .fusion import FusionPlan, Part
from .memory import Live, MemoryRule, in_order, peak_bytes, size
from .operators import DataFlowGraph, RKernel, ROperator
from .placement import Placement
from .program import TaskProgram
from .regions import plan_regions
from .timing import simulate
from .vdevice import LAUNCHES, Costs, VDevice

Select = Callable[[Placement, Sequence[ROperator]], "Placement | None"]
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
    graph : DataFlowGraph
    device : DeviceSpec
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
    >>> from roller_tvm.rammer.kernels import roperator
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
    dependences = Dependences(graph)
    memory = MemoryRule.of(graph, device, kept, resident_bytes)
    given = (graph, device, launch, dependences, memory, frozenset(kept))
    made: list[tuple[str, list[Placement | ROperator]]] = []
    if policy == "wavefront":
        made.append(("wavefront", wavefront(*given)))
    if policy in ("best", "front"):
        made.append(("front", wavefront(*given, _from_front)))
    if policy in ("best", "list"):
        made.append(("list", by_list(*given)))
    if policy == "horizontal":
        made.append(("horizontal", horizontal(*given)))
    costs = Costs.of(device, launch)
    for name, plans in sorted(made, key=lambda m: sum(_expected(p, graph, costs) for p in m[1])):
        found = _finish(name, *given, plans)
        if found.peak_bytes <= memory.limit_bytes:
            return found
    # They take operators in an order of their own; in the graph's nothing is ever too much.
    if policy == "horizontal":
        return _finish("one by one, in the graph's order", *given, [graph.by_name[name] for name in in_order(graph)])
    rank = {name: -float(n) for n, name in enumerate(in_order(graph))}
    return _finish("list, in the graph's order", *given, by_list(*given, rank))


def _expected(plan: Placement | ROperator, graph: DataFlowGraph, costs: Costs) -> float:
    """Return the seconds of a plan before it is a program: by its placement, or with its operators one by one."""
    if isinstance(plan, ROperator):
        return _plain_seconds(plan, costs)
    return min(plan.seconds, sum(_plain_seconds(graph.by_name[name], costs) for name, _ in plan.chosen))


def wavefront(
    graph: DataFlowGraph, device: DeviceSpec, launch: str, dependences: Dependences, memory: MemoryRule,
    kept: frozenset[str] = frozenset(), select: Select | None = None,
) -> list[Placement | ROperator]:  # fmt: skip
    """Return plans by the paper's policy; an operator stands alone if it does not fit the device with any other.

    For each breadth-first wave two plans are made, the wave appended to the plan so far and the wave on its own; it
    stays appended if that takes no longer than both apart. The last plan is one of the result.

    With another way to select rKernels (`select`), plans apart count by the better of fused and one by one.
    """
    costs = Costs.of(device, launch)

    def worth(plan: Placement) -> float:
        return _expected(plan, graph, costs) if select else plan.seconds

    plans: list[Placement | ROperator] = []
    empty = current = Placement(device, dependences, launch)
    waves = [list(wave) for wave in reversed(graph.waves)]
    live = Live(graph, kept)
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


def horizontal(
    graph: DataFlowGraph, device: DeviceSpec, launch: str, dependences: Dependences, memory: MemoryRule,
    kept: frozenset[str] = frozenset(),
) -> list[Placement | ROperator]:  # fmt: skip
    """Return breadth-first waves, each on its own, of rKernels with a single kernel: none of a wave's rTasks waits.

    An operator that is faster as several kernels, launches counted, stays on its own.
    """
    costs = Costs.of(device, launch)
    empty = Placement(device, dependences, launch)
    plans: list[Placement | ROperator] = []
    waves = [list(wave) for wave in reversed(graph.waves)]
    live = Live(graph, kept)
    while waves:
        wave = waves.pop()
        together, apart = [], []
        for operator in wave:
            one = tuple(k for k in operator.kernels if len(k.phases) == 1)
            if one and min(k.seconds for k in one) <= _plain_seconds(operator, costs):
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


def by_list(
    graph: DataFlowGraph, device: DeviceSpec, launch: str, dependences: Dependences, memory: MemoryRule,
    kept: frozenset[str] = frozenset(), rank: Mapping[str, float] | None = None,
) -> list[Placement | ROperator]:  # fmt: skip
    """Return plans by list scheduling: the operator of the highest rank next, by the rKernel that ends the plan first.

    By default the rank is the length of the path to the end. A plan is closed if the next operator is predicted to do
    better without it; both sides count by the better of fused and one by one.
    """
    costs = Costs.of(device, launch)
    rank = rank or _ranks(graph, costs)
    waiting = {o.name: len({e.producer for e in o.inputs}) for o in graph.operators}
    place = {o.name: n for n, o in enumerate(graph.operators)}
    ready = [(-rank[n], place[n], n) for n, count in waiting.items() if not count]
    heapq.heapify(ready)
    plans: list[Placement | ROperator] = []
    empty = current = Placement(device, dependences, launch)
    sofar = 0.0  # the plan's operators one by one
    live = Live(graph, kept)
    while ready:
        _, _, name = heapq.heappop(ready)
        operator = graph.by_name[name]
        single = _plain_seconds(operator, costs)
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


def _plain_seconds(operator: ROperator, costs: Costs) -> float:
    kernel = plain_kernel(operator, costs)
    return kernel.seconds + len(kernel.phases) * costs.launch_seconds


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


def _finish(
    policy: str, graph: DataFlowGraph, device: DeviceSpec, launch: str, dependences: Dependences, memory: MemoryRule,
    kept: frozenset[str], plans: Sequence[Placement | ROperator],
) -> FusionPlan:  # fmt: skip
    """Return the plans as programs; those not predicted to pay become kernels one after the other."""
    costs = Costs.of(device, launch)
    parts = []
    made: dict[Hashable, tuple[TaskProgram, float]] = {}
    for plan in plans:
        operators = [plan] if isinstance(plan, ROperator) else [graph.by_name[name] for name, _ in plan.chosen]
        plain = tuple((o.name, plain_kernel(o, costs)) for o in operators)
        sequential = sum(_plain_seconds(o, costs) for o in operators)
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
        why = _too_big(plan, device) if isinstance(plan, ROperator) else ()
        parts.append(Part(plain, sequential, sequential, reasons=why,
                          waves=tuple(graph.depth[o.name] for o in operators)))
    groups = [names for p in parts for names in ([[o for o, _ in p.kernels]] if p.program else
                                                 [[o] for o, _ in p.kernels])]
    return FusionPlan(device.name, policy, launch, tuple(parts), peak_bytes(graph, groups, kept), memory.peak_bytes,
                      memory.limit_bytes)
