"""The whole text for a plan or a construction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...device import DeviceSpec
from ...roller.alignment import Rejection
from ..construction import Construction, RankedPlan
from ..lower import lower, render
from .bound import bound_of
from .operator import operator_lines, roofline
from .program import program_lines
from .runners import runner_lines
from .words import amount, seconds, share


def explain(
    subject: Construction | RankedPlan, device: DeviceSpec, runners_up: int = 4, steps: bool = False
) -> str:
    """Return a performance engineer's report on a plan, as text.

    Parameters
    ----------
    subject : Construction or RankedPlan
        A construction is explained by its best plan, why the next ones lost, and the rejected candidates.
    device : DeviceSpec
        The device that was planned for.
    runners_up : int
        Number of other plans to compare with the best.
    steps : bool
        Append the schedule steps.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.ir.operators import matmul
    >>> from roller_tvm.planner import construct
    >>> v100 = load_device("v100")
    >>> print(explain(construct(matmul(m=512, n=512, k=512), v100), v100).splitlines()[0].split(":")[0])
    operator matmul
    """
    plans = subject.plans if isinstance(subject, Construction) else (subject,)
    best = plans[0]
    expression = best.plan.expression
    lines = operator_lines(expression, device, best.plan.programs)
    lines.append(f"  device {device}")
    notes = [note for note in device.notes if device.source in ("estimated", "user")]
    lines += [f"  note: {note}" for note in notes]
    reached = roofline(expression, device, best.plan.programs).seconds / best.seconds
    title = f"plan {best.plan.digest()}" + (f", best of {len(plans)}" if len(plans) > 1 else "")
    lines += [
        "",
        f"{title}: {seconds(best.seconds)} predicted, {amount(best.estimate.gflops * 1e9, 'FLOP/s')}, "
        f"{share(reached)} of the roofline, {bound_of(best.estimate, device)} bound",
    ]
    lines += [f"  {line}" for line in _splits(best)]
    if count := best.plan.slices:
        lines.append(f"  {count} slices: a core takes one through all nests, and keeps what lies between in its caches")
    for program, estimate in zip(best.plan.programs, best.estimate.programs, strict=True):
        lines += program_lines(expression, program, estimate, device)
    if isinstance(subject, Construction):
        lines += ["", "why the runners-up lost", *runner_lines(plans, device, runners_up)]
        lines += ["", *rejection_lines(subject)]
    if steps:
        lines += ["", "schedule steps", *(f"  {line}" for line in explain_steps(best).splitlines())]
    return "\n".join(lines) + "\n"


def _splits(ranked: RankedPlan) -> list[str]:
    lines = []
    for split in ranked.plan.split_reductions:
        what = f"reduction '{split.axis}' of {split.stage} split in {split.parts}"
        if split.lanes:
            lines.append(f"{what} lanes: neighbours along it fill a vector, a second nest adds the lanes")
        else:
            lines.append(f"{what}: too few outputs would leave units idle; a second nest adds the parts")
    return lines


def explain_steps(ranked: RankedPlan) -> str:
    """Return the schedule steps of a plan as text, one per line."""
    return render(lower(ranked.plan))


def rejection_lines(construction: Construction) -> list[str]:
    """Return lines on rejected candidates, grouped by rule: how many, an example with its numbers, the remedy."""
    rejections: Sequence[Rejection] = construction.rejections
    eps = f"; eps relaxed to {construction.eps:g}" if construction.eps else ""
    lines = [
        f"{construction.considered} candidates considered, {len(rejections)} times a rule was broken{eps}"
    ]
    for rule, number in Counter(r.rule for r in rejections).most_common():
        example = next(r for r in rejections if r.rule == rule)
        needs = f"needs {example.required}, limit {example.limit}"
        lines.append(f"  {number:5d} {rule}: {example.candidate or 'e.g.'} {needs}")
        for remedy in dict.fromkeys(r.remedy for r in rejections if r.rule == rule and r.remedy):
            lines.append(f"        remedy: {remedy}")
    return lines
