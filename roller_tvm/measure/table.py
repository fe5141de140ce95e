"""The progress table: one line per task, with the columns that users of tuners know."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roller_tvm.measure.results import TunedTask, TuneResult

NAME_WIDTH = 44
HEADER = (
    f"{'ID':>3}  {'Name':<{NAME_WIDTH}} {'FLOP':>9} {'Weight':>6} {'GFLOPS':>8} {'Latency':>11} "
    f"{'Plan ms':>8} {'Measured':>8}"
)


def header() -> str:
    return f"{HEADER}\n{'-' * len(HEADER)}"


def si(value: float, unit: str = "") -> str:
    """Return a number with an SI prefix and a unit.

    Examples
    --------
    >>> si(2.5e9)
    '2.50 G'
    """
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.2f} {prefix}{unit}"
    return f"{value:.0f} {unit}".rstrip()


def duration(seconds: float) -> str:
    """Return seconds as text in ms, us or ns; '-' for nan.

    Examples
    --------
    >>> duration(0.00123), duration(4e-8), duration(float("nan"))
    ('1.230 ms', '40 ns', '-')
    """
    if math.isnan(seconds):
        return "-"
    if seconds < 1e-6:
        return f"{seconds * 1e9:.0f} ns"
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"


def row(tuned: TunedTask) -> str:
    """Return the line of one task; a predicted latency has a '~' before it."""
    name = tuned.task.name
    if len(name) > NAME_WIDTH:
        name = name[: NAME_WIDTH - 3] + "..."
    latency = duration(tuned.seconds)
    if tuned.seconds == tuned.predicted_s:  # not measured, now or when it was recorded
        latency = "~" + latency
    gflops = "-" if math.isnan(tuned.gflops) or not tuned.gflops else f"{tuned.gflops:.1f}"
    tried = len([o for o in tuned.outcomes if o.repeats])
    measured = {"resumed": "resumed", "planned": "planned"}.get(tuned.status, f"{tried}/{len(tuned.outcomes)}")
    flops = tuned.candidates.flops or tuned.task.flops
    line = (f"{tuned.task.id:>3}  {name:<{NAME_WIDTH}} {si(flops):>9} {tuned.task.weight:>6} {gflops:>8} "
            f"{latency:>11} {tuned.candidates.plan_ms:>8.0f} {measured:>8}")  # fmt: skip
    if tuned.status == "fallback":
        line += f"\n     TVM's own schedule: {tuned.reason}"
    if tuned.failures:
        line += f"\n     failed: {counts(tuned.failures)}"
    return line


def counts(failures: dict[str, int]) -> str:
    """Return failures as text, the most frequent kind first.

    Examples
    --------
    >>> counts({"crash": 1, "run timeout": 2})
    '2 run timeout, 1 crash'
    """
    return ", ".join(f"{n} {kind}" for kind, n in sorted(failures.items(), key=lambda p: (-p[1], p[0])))


def table(result: TuneResult) -> str:
    return "\n".join([header(), *(row(t) for t in result.tasks)])


def summary(result: TuneResult) -> str:
    """Return the table, failures by kind, tasks left to TVM's own schedules, and the seconds of each phase."""
    lines = [table(result), ""]
    states = {s: sum(t.status == s for t in result.tasks) for s in ("measured", "planned", "resumed", "fallback")}
    counted = ", ".join(f"{n} {s}" for s, n in states.items() if n)
    latency = f"{duration(result.latency_s)} a run in these kernels"
    if any(t.seconds == t.predicted_s for t in result.tasks if t.task.weight):
        latency = f"~{latency}, as predicted"
    if not math.isnan(result.default_latency_s):
        latency += f" ({duration(result.default_latency_s)} with TVM's own)"
    threads = f", {result.threads} threads" if result.device.kind == "cpu" else ""
    lines.append(f"{len(result.tasks)} tasks: {counted}; {latency}" + threads)
    if result.failures:
        lines.append(f"failed candidates: {counts(result.failures)}")
    lines += [f"note: {note}" for note in result.notes]
    lines.append("seconds: " + ", ".join(f"{k} {v:.1f}" for k, v in result.seconds.items()))
    if result.log_file:
        lines.append(f"records: {result.log_file}")
    return "\n".join(lines)


def to_json(result: TuneResult) -> dict[str, Any]:
    """Return the result as JSON values."""

    def number(value: float) -> float | None:
        return None if math.isnan(value) else value

    return {
        "target": result.target, "device": result.device.name, "log_file": result.log_file,
        "trials": result.trials, "threads": result.threads, "seconds": result.seconds, "notes": result.notes,
        "failures": result.failures,
        "tasks": [
            {
                "id": t.task.id, "name": t.task.name, "workload_key": t.task.key, "weight": t.task.weight,
                "flop": t.candidates.flops or t.task.flops, "status": t.status, "reason": t.reason,
                "seconds": number(t.seconds), "default_s": number(t.default_s), "predicted_s": number(t.predicted_s),
                "gflops": number(t.gflops), "plan_ms": t.candidates.plan_ms, "checked": t.checked,
                "failures": t.failures,
                "measured": len([o for o in t.outcomes if o.repeats]),
                "plan": t.plan.plan.to_json() if t.plan is not None else None,
            }
            for t in result.tasks
        ],
    }  # fmt: skip
