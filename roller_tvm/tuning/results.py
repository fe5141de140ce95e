"""Results of tuning the tasks of a model, as values, as a table and as JSON."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from roller_tvm.device import DeviceSpec
from roller_tvm.errors import NothingTuned
from roller_tvm.explore.explorer import Row
from roller_tvm.tuning.candidates import Candidates
from roller_tvm.tuning.session import Outcome, TaskResult
from roller_tvm.version import __version__

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

NAME_WIDTH = 44
HEADER = (
    f"{'ID':>3}  {'Name':<{NAME_WIDTH}} {'FLOP':>9} {'Weight':>6} {'GFLOPS':>8} {'Latency':>11} "
    f"{'Plan ms':>8} {'Measured':>8}"
)
#: Factor on the predicted seconds of a plan that was not measured: it is recorded in nanoseconds, so that a measured
#: record of the same task, ours or another tuner's, always wins.
UNMEASURED = 1e9


@dataclass(frozen=True)
class Note:
    """Facts about a task's record that its format does not hold.

    Parameters
    ----------
    plan : str
        Digest of the plan.
    predicted_s, measured_s : float or None
        Seconds.
    trials : int
        Plans measured to find it.
    checked : bool
        Whether its result was compared with the reference.
    flops : float or None
        Floating-point operations, as the plan counts them.
    computation : str
        Digest of the computation, where the key of a record may stand for several; '' if it is not known.
    """

    plan: str = ""
    predicted_s: float | None = None
    measured_s: float | None = None
    trials: int = 0
    checked: bool = False
    flops: float | None = None
    computation: str = ""
    version: str = __version__

    def json(self) -> str:
        """Return the fields as one line of JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def of(cls, data: dict[str, Any]) -> Self:
        """Return a note of JSON values, less those that a later version has added.

        Raises
        ------
        ValueError
            A value is of another type.
        """
        for name, value in data.items():
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if name.endswith("_s") or name == "flops":
                good = value is None or number
            elif name == "trials":
                good = isinstance(value, int) and number
            else:
                good = isinstance(value, (str, bool))
            if not good:
                raise ValueError(f"{name!r} of a note cannot be {value!r}")
        return cls(**{f.name: data[f.name] for f in fields(cls) if f.name in data})


@dataclass
class TunedTask:
    """Result of one task.

    Parameters
    ----------
    task : Task
        Task with `id`, `name`, `weight`, `key` and `flops`.
    status : str
        'measured': a record with the measured time was written. 'planned': a record with the predicted time was
        written. 'resumed': the file already had a record. 'fallback': no record, TVM's own schedule stays for `reason`.
    candidates : Candidates
        Candidates with `flops`, `plan_ms` and `failures`.
    plan : RankedPlan or None
        Plan of the winner; None if there is none.
    seconds : float
        Measured time in seconds, else predicted, else nan.
    default_s : float
        Time of TVM's own kernel in seconds, measured beside ours; nan if it was not measured.
    kept : bool
        True for a fallback because TVM's own kernel is faster.
    """

    task: Any
    status: str
    candidates: Any
    outcomes: list[Outcome] = field(default_factory=list)
    plan: Any = None
    seconds: float = math.nan
    predicted_s: float = math.nan
    default_s: float = math.nan
    checked: bool = False
    reason: str = ""
    kept: bool = False

    @property
    def gflops(self) -> float:
        flops = self.candidates.flops or self.task.flops
        return flops / self.seconds / 1e9 if self.seconds and not math.isnan(self.seconds) else math.nan

    @property
    def failures(self) -> dict[str, int]:
        """Number of failed candidates by kind."""
        kinds = Counter(o.kind for o in self.outcomes if not o.ok)
        if self.candidates.failures:
            kinds["schedule error"] += len(self.candidates.failures)
        return dict(kinds)


@dataclass
class TuneResult:
    """Result of tuning the tasks of a model.

    Parameters
    ----------
    log_file : str or None
        File of the records.
    trials : int
        Plans measured per task.
    fusion, module
        With ``fuse_rtasks``: report on the fused kernels, and the module to build; `tasks` are its other operators.
    """

    tasks: list[TunedTask]
    device: DeviceSpec
    target: str
    log_file: str | None
    trials: int
    threads: int
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    fusion: Any = None
    module: Any = None

    @property
    def failures(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for tuned in self.tasks:
            total.update(tuned.failures)
        return dict(total)

    @property
    def latency_s(self) -> float:
        """Sum over the tasks of time times weight, in seconds; tasks without a time count nothing."""
        return sum(t.seconds * t.task.weight for t in self.tasks if not math.isnan(t.seconds))

    @property
    def default_latency_s(self) -> float:
        """The same sum with TVM's own kernels; nan unless each was measured."""
        return sum(t.default_s * t.task.weight for t in self.tasks if t.task.weight)

    def __str__(self) -> str:
        return summary(self)


def resumed(task: Any, note: Note, default_s: float | None = None) -> TunedTask:
    """Return the result of a task that an earlier tuning recorded; `default_s` is the time of TVM's own kernel."""
    predicted, default = (math.nan if seconds is None else seconds for seconds in (note.predicted_s, default_s))
    return TunedTask(
        task, "resumed", Candidates(flops=note.flops or 0.0),
        seconds=predicted if note.measured_s is None else note.measured_s, predicted_s=predicted, default_s=default,
        checked=note.checked,
    )  # fmt: skip


def judge(tuned: TunedTask, measured: TaskResult, plans: Sequence[Any], timed: bool) -> None:
    """Set a task's result from the outcomes: its winner, or the reason that TVM's own schedule stays.

    Parameters
    ----------
    plans : sequence of RankedPlan
        Plans in the order of the measured candidates.
    timed : bool
        True if the winner was chosen by time.
    """
    outcomes = tuned.outcomes = measured.outcomes
    default_s = measured.default.seconds if measured.default and measured.default.ok else math.nan
    tuned.status, tuned.default_s = "fallback", default_s
    if measured.default_wins:
        ours = min(o.seconds for o in outcomes if o.ok)
        tuned.seconds, tuned.kept = default_s, True
        tuned.reason = f"it is faster: {duration(default_s)}, our best {duration(ours)}"
    elif measured.winner is None:
        kinds = ", ".join(f"{n} {kind}" for kind, n in measured.failures().items())
        first = next((o.text for o in outcomes if not o.ok and o.text), "")
        tuned.reason = f"no candidate works ({kinds}): {first}"
    else:
        outcome = outcomes[measured.winner]
        tuned.plan = plans[measured.winner]
        tuned.predicted_s, tuned.checked = tuned.plan.estimate.seconds, outcome.checked
        tuned.status = "measured" if timed else "planned"
        tuned.seconds = outcome.seconds if timed else tuned.predicted_s


def busy(threads: int) -> list[str]:
    """Return a note if other processes ran here, so that timings are unreliable; else []."""
    with contextlib.suppress(OSError, AttributeError):
        load, cpus = os.getloadavg()[0], os.cpu_count() or 1
        if load > max(cpus, threads) + 1:  # our own workers make one process a thread
            return [f"this machine was busy (load {load:.1f} on {cpus} CPUs): times here are not to be trusted"]
    return []


def nothing_tuned(result: TuneResult) -> NothingTuned:
    """Return the error of a tuning without a working plan for any task."""
    kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(result.failures.items())) or "no candidate failed to run"
    reasons = Counter(t.reason for t in result.tasks).most_common(3)
    told = "; ".join(f"{n} x {reason}" for reason, n in reasons)
    remedy = "run 'roller-tvm doctor', and check that the target is this machine's"
    if "SIGILL" in told:
        remedy = "give the target 'llvm' (this CPU), or plan without measuring (0 trials)"
    elif not result.failures:  # no plan was made at all
        remedy = "build without records; open extents: give shapes (--input-shapes), or sizes (Relax line: --buckets)"
    return NothingTuned(
        f"none of {len(result.tasks)} tasks got a working plan ({kinds}): {told}", result.target, remedy
    )


def live_rows(tasks: Sequence[TunedTask]) -> list[Row]:
    """Return the rows of the live table: the times of tasks with their first plan that ran, and with the best one."""
    whole = sum(_start_s(t) for t in tasks) or 1.0
    found = [
        Row(t.task.name, start / whole, sum(o.ok for o in t.outcomes), max(1, len(t.outcomes)), 1, start,
            start - _gain_s(t), (), True)
        for t, start in zip(tasks, map(_start_s, tasks), strict=True)
    ]  # fmt: skip
    return sorted(found, key=lambda row: -row.share)


def history(tasks: Sequence[TunedTask]) -> list[float]:
    """Return the seconds of a run of all these tasks before any was tuned, and after each was."""
    return [sum(map(_start_s, tasks)) - gained for gained in accumulate([0.0, *map(_gain_s, tasks)])]


def _start_s(tuned: TunedTask) -> float:
    first = next((o.seconds for o in tuned.outcomes if o.ok), tuned.seconds)
    return 0.0 if math.isnan(first) else tuned.task.weight * first


def _gain_s(tuned: TunedTask) -> float:
    start = _start_s(tuned)
    return max(0.0, start - tuned.task.weight * tuned.seconds) if start and not math.isnan(tuned.seconds) else 0.0


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
