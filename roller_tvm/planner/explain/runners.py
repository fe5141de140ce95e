"""Why one plan is predicted to be slower than another: the largest difference between two estimates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from ...device import DeviceSpec
from ...micro_perf.estimate import ProgramEstimate
from ...roller.rprogram import RProgram
from ..construction import RankedPlan
from .words import count, seconds, share, times

#: Two plans whose times differ by less than this share of the best one count as equal.
EQUAL = 0.0005


@dataclass(frozen=True)
class Difference:
    """One way in which a plan is worse: the seconds that it accounts for, and its words."""

    seconds: float
    text: str


def why_slower(best: RankedPlan, other: RankedPlan, device: DeviceSpec) -> str:
    """Return the main reason why `other` is predicted to be slower than `best`.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.ir.operators import matmul
    >>> from roller_tvm.planner import construct
    >>> v100 = load_device("v100")
    >>> plans = construct(matmul(m=512, n=512, k=512), v100).plans
    >>> why_slower(plans[0], plans[0], v100)
    'predicted to be equal'
    """
    first, second = best.plan.programs, other.plan.programs
    if best.plan.split_reductions != other.plan.split_reductions:
        return _split(best, other)
    if [p.anchor for p in first] != [p.anchor for p in second]:
        return _other_nests(best, other)
    pairs = list(zip(first, second, best.estimate.programs, other.estimate.programs, strict=True))
    a, b, before, after = max(pairs, key=lambda p: p[3].seconds - p[2].seconds)
    if other.seconds - best.seconds <= EQUAL * best.seconds:
        return "predicted to be equal"
    if a.recipe != b.recipe:
        took = f"{b.anchor} takes {seconds(after.seconds)}, not {seconds(before.seconds)}"
        return f"recipe {b.recipe} instead of {a.recipe}: {took}"
    return max(_differences(b, before, after, device), key=lambda d: d.seconds).text


def _split(best: RankedPlan, other: RankedPlan) -> str:
    def parts(plan: RankedPlan) -> str:
        splits = plan.plan.split_reductions
        return (
            " and ".join(f"{s.axis} split in {s.parts}" for s in splits) if splits else "no reduction split"
        )

    waves = {p: p.estimate.programs[0] for p in (best, other)}
    text = f"{parts(other)} instead of {parts(best)}"
    one, two = waves[best], waves[other]
    if two.blocks != one.blocks:
        text += f": {two.blocks} blocks instead of {one.blocks}"
    return text


def _other_nests(best: RankedPlan, other: RankedPlan) -> str:
    """Return which stages one plan stores and the other computes in place, and the program that became slower."""
    times = {p.anchor: e.seconds for p, e in zip(best.plan.programs, best.estimate.programs, strict=True)}
    theirs = {p.anchor: e.seconds for p, e in zip(other.plan.programs, other.estimate.programs, strict=True)}
    told = [f"{name} in place instead of stored" for name in times if name not in theirs]
    told += [f"{name} stored instead of in place" for name in theirs if name not in times]
    text = ", ".join(told) or f"{len(theirs)} loop nests instead of {len(times)}"
    slower = max((n for n in theirs if n in times), key=lambda n: theirs[n] - times[n], default="")
    if slower and theirs[slower] > times[slower]:
        text += f": {slower} takes {seconds(theirs[slower])}, not {seconds(times[slower])}"
    return text


def _differences(
    program: RProgram, before: ProgramEstimate, after: ProgramEstimate, device: DeviceSpec
) -> list[Difference]:
    """Return every difference that costs time, one per field of the estimates."""
    found = []
    known = {level.level: level for level in before.levels}
    for level in after.levels:
        if (
            level.level in known
            and known[level.level].bytes
            and level.bytes > 1.01 * known[level.level].bytes
        ):
            ratio = level.bytes / known[level.level].bytes
            weight = level.seconds - known[level.level].seconds
            if after.bound == level.level:  # the others hide behind it
                weight += after.seconds
            found.append(Difference(weight, f"{times(ratio)} the {level.level} traffic"))
    if after.compute_seconds > 1.01 * before.compute_seconds:
        ratio = after.compute_seconds / before.compute_seconds
        how = "padding" if device.kind == "gpu" else "partly filled vectors, short multiply-add chains"
        weight = after.compute_seconds - before.compute_seconds + after.seconds * (after.bound == "compute")
        found.append(Difference(weight, f"{times(ratio)} the arithmetic ({how})"))
    lost = after.seconds * (1 - after.utilisation) - before.seconds * (1 - before.utilisation)
    if after.utilisation < before.utilisation - 0.005:
        what = "chunk" if device.kind == "cpu" else "block"
        idle = (
            f"units idle {share(1 - after.utilisation)} instead of {share(max(0.0, 1 - before.utilisation))}"
        )
        found.append(Difference(lost, f"{idle} ({count(after.blocks, what)} on {device.units} units)"))
    rest = max(
        0.0, after.seconds - before.seconds - sum(d.seconds for d in found if d.seconds < after.seconds)
    )
    warps, had = _warps(after, device), _warps(before, device)
    if after.bound == "latency" and warps < had:
        found.append(Difference(rest, f"{warps} warps on a unit instead of {had}: loads are hidden less"))
    elif after.bound == "latency":
        staged = "more, or longer, steps of load - synchronise - compute"
        found.append(Difference(rest, staged if program.copies_tiles else "loads are hidden less"))
    elif after.bound == "issue":
        found.append(Difference(rest, "more instructions beside the arithmetic (fetches, addresses)"))
    elif device.kind == "cpu":
        found.append(Difference(rest, "more register tiles to start, or more loads a multiply-add"))
    else:
        found.append(Difference(rest, f"more time at its bound ({after.bound})"))
    return found


def _warps(estimate: ProgramEstimate, device: DeviceSpec) -> int:
    return estimate.occupancy * ceil(estimate.threads / device.vector_width)


def tile_changes(a: RProgram, b: RProgram, most: int = 3) -> str:
    """Return the differences between the tiles of two programs (else between their choices), in a few words."""
    changes = []
    for one, two in zip(a.tiles, b.tiles, strict=False):
        if one.level != two.level or [x for x, _ in one.extents] != [x for x, _ in two.extents]:
            return "another nest"
        axes = [f"{axis} {two[axis]} instead of {n}" for axis, n in one.extents if two[axis] != n]
        if axes:
            changes.append(f"{one.level} tile {', '.join(axes)}")
    if not changes:
        mine, other = dict(a.choices), dict(b.choices)
        changes = [
            f"{k} {other.get(k, '-')} instead of {mine.get(k, '-')}"
            for k in dict.fromkeys([*mine, *other])
            if mine.get(k) != other.get(k)
        ]
    return "; ".join(changes[:most])


def runner_lines(plans: Sequence[RankedPlan], device: DeviceSpec, most: int) -> list[str]:
    """Return a line per runner-up: predicted time, how much more than the best, why, and which tiles differ."""
    best, rows = plans[0], []
    for rank, plan in enumerate(plans[1 : most + 1], 2):
        index = _varying(best, plan)
        change = (
            tile_changes(best.plan.programs[index], plan.plan.programs[index]) if index is not None else ""
        )
        more = plan.seconds / best.seconds - 1
        rows.append(
            [
                f"#{rank}",
                seconds(plan.seconds),
                f"+{100 * more:.1f}%",
                why_slower(best, plan, device) + (f" ({change})" if change else ""),
            ]
        )
    if not rows:
        return ["    none was kept: there is no other, or no more were asked for (--top)"]
    width = [max(len(r[i]) for r in rows) for i in range(3)]
    lines = [f"    {r[0]:<{width[0]}}  {r[1]:>{width[1]}}  {r[2]:>{width[2]}}  {r[3]}" for r in rows]
    left = len(plans) - 1 - len(rows)
    return [*lines, f"    and {left} more, up to {seconds(plans[-1].seconds)}"] if left > 0 else lines


def _varying(best: RankedPlan, other: RankedPlan) -> int | None:
    """Return the position of the first program that differs; None if the plans have different anchors."""
    first, second = best.plan.programs, other.plan.programs
    if [p.anchor for p in first] != [p.anchor for p in second]:
        return None
    return next((i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b), 0)
