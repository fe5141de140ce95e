"""Results of tuning the tasks of a model."""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.errors import NothingTuned
from roller_tvm.measure.session import Outcome, TaskResult
from roller_tvm.measure.table import duration


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
    def fallbacks(self) -> list[TunedTask]:
        return [t for t in self.tasks if t.status == "fallback"]

    @property
    def latency_s(self) -> float:
        """Sum over the tasks of time times weight, in seconds; tasks without a time count nothing."""
        return sum(t.seconds * t.task.weight for t in self.tasks if not math.isnan(t.seconds))

    @property
    def default_latency_s(self) -> float:
        """The same sum with TVM's own kernels; nan unless each was measured."""
        return sum(t.default_s * t.task.weight for t in self.tasks if t.task.weight)

    def __str__(self) -> str:
        from roller_tvm.measure.table import summary

        return summary(self)


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
