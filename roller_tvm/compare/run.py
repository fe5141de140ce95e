"""Running a comparison: each tuner on each case in a process of its own, then all kernels of a case timed in turns."""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roller_tvm.baseline.trained import machine_of
from roller_tvm.compare import machines, quiet
from roller_tvm.compare.environment import environment
from roller_tvm.compare.jobs import Done, run_job
from roller_tvm.compare.opened import readable
from roller_tvm.compare.pace import Pace
from roller_tvm.compare.results import NOT_AGAIN, Forgotten, Prepared, Results, Timed, Tuned
from roller_tvm.compare.suite import Case
from roller_tvm.compare.tuner import Tuner
from roller_tvm.errors import BadInput, MeasureError, RecordError

#: Given up after so long: what any job may take, and each trial more (building, measuring and the search between).
JOB_S, TRIAL_S = 900.0, 30.0
#: An operator's kernels are timed in so many processes, so many rounds in each: which pages of memory a process has
#: decides up to a fifth of a kernel's time, and not of all kernels alike.
PROCESSES, ROUNDS = 5, 4
#: Operators of a model, at most, as far as limits go.
OPERATORS = 10
#: Module of what jobs of whole models call.
WHOLE_MODELS = "roller_tvm.compare.whole.jobs"
#: And of what times them.
LATENCY = "roller_tvm.compare.whole.latency"
#: Stands for a tuner where only times are to be had again.
TIMES = "times"
#: Of jobs that only build, the log.
BUILT_AGAIN = "built_again.log"

Progress = Callable[[Case, Tuner, Tuned], None]


@dataclass(frozen=True)
class Request:
    """What to compare, and with what.

    Parameters
    ----------
    edge : str
        Module that does the work on a line of TVM (see ``compare.relay``, ``compare.relax``).
    line, target : str
    device : DeviceSpec
        That of the target.
    tuners : tuple of Tuner
    folder : Path
        Of everything that is found; an earlier comparison there goes on.
    threads : int
        Of each kernel.
    limit_s : float or None
        A job is given up after so long; by default it follows from the trials.
    latency_s : float
        Of timing whole models, each of a few sets of processes.
    quiet_s : float
        Before tuning and timing, wait so long at most for a machine on which nothing else runs; before timing for
        one at its pace, too.
    mixed : bool
        Whether cases may be of different machines, each of one.
    """

    edge: str
    line: str
    target: str
    device: Any
    tuners: tuple[Tuner, ...]
    folder: Path
    threads: int
    limit_s: float | None = None
    latency_s: float = 6.0
    quiet_s: float = 0.0
    mixed: bool = False

    def limit(self, tuner: Tuner, whole: bool = False) -> float:
        """Seconds after which a tuner is given up on a case; Roller's trials are of each operator of a model."""
        often = OPERATORS if whole and not tuner.searches else 1
        return JOB_S * often + TRIAL_S * tuner.trials * often if self.limit_s is None else self.limit_s


class Comparison:
    """A comparison in a folder; use it in a ``with`` statement, for one process at a time may write there.

    Examples
    --------
    >>> with Comparison(request) as comparison:  # doctest: +SKIP
    ...     comparison.run(load_suite("demo"))
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        folder = request.folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"no folder can be made there: {error.strerror}", str(folder), "give another") from error
        self._lock: Any = None
        self._pace: Pace | None = None
        self._take_lock()
        try:
            self.results = Results(folder / "results.jsonl")
            self.environment = ""
            self.elsewhere: frozenset[str] = frozenset()
        except BaseException:
            self.close()
            raise

    def _take_lock(self) -> None:
        with contextlib.suppress(ImportError):  # POSIX alone has it
            import fcntl

            lock = (self.request.folder / "lock").open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                lock.close()
                told = "another comparison is running there"
                raise RecordError(told, str(self.request.folder), "wait, or give another folder") from error
            self._lock = lock

    def close(self) -> None:
        """Let other processes write there."""
        if self._pace is not None:
            self._pace.close()
            self._pace = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Comparison:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- steps --------------------------------------------------------------------------------------------------

    def open(self, only_report: bool = False) -> None:
        """Note where this runs; of a report alone, where its figures are from.

        Raises
        ------
        RecordError
            The folder holds figures of another TVM, or of another machine and they are not to be mixed.
        """
        r = self.request
        if only_report:
            self.environment = next(reversed(self.results.environments), "")
            return
        done = self._job("facts", {"target": r.target}, JOB_S)
        if done.status != "ok":
            raise MeasureError(f"TVM cannot be used: {done.reason}", r.target, "run 'roller-tvm doctor'", "worker")
        peaks = {"gflops": r.device.peak("float32"), "gbytes_per_s": r.device.levels[0].bandwidth_gbps}
        here = environment(r.line, r.target, r.threads, {"machine": machine_of(r.device), **done.value}, peaks)
        self.elsewhere = machines.others(self.results.environments, here, r.mixed, str(r.folder))
        if here["id"] not in self.results.environments:
            self.results.add(here)
        self.environment = str(here["id"])

    def forget(self, tuners: str, cases: Sequence[Case]) -> None:
        """Do again what these tuners, names or labels with commas, have done on these cases; ``times``: only time.

        ``times`` leaves a case of another machine its times: it would have to be tuned here first.
        """
        words = {w.strip() for w in tuners.split(",") if w.strip()}
        times, words = TIMES in words, words - {TIMES}
        known = {label for _, label in self.results.tuned} | {t.label for t in self.request.tuners}
        if unknown := words - known - {label.split(":")[0] for label in known}:
            raise BadInput(f"has no results of {', '.join(sorted(unknown))}", str(self.request.folder),
                           f"of {', '.join(sorted(known))}")  # fmt: skip
        for digest in dict.fromkeys(c.digest for c in cases):
            done = self.results.tuned_of(digest)
            labels = tuple(t.tuner for t in done if words & {t.tuner, t.tuner.split(":")[0]})
            only_times = times and digest in self.results.timed and not self._elsewhere(digest)
            if labels or only_times:
                self._remove_kernels(t.kernel for t in done if t.tuner in labels)
                self.results.add(Forgotten(digest, labels, times=True))
            for label in labels:
                self._remove_work(digest, label)

    def _remove_kernels(self, kernels: Iterable[str]) -> None:
        """Remove files: one schedule may be another kernel now. Who else had it builds it again."""
        for kernel in filter(None, kernels):
            path = self.request.folder / kernel
            path.unlink(missing_ok=True)
            path.with_suffix(".json").unlink(missing_ok=True)

    def _remove_work(self, digest: str, label: str) -> None:
        """Remove what a tuner keeps to go on with, the trials in its name: ``curve.64.jsonl``, a folder ``64``."""
        name, _, trials = label.partition(":")
        folder = self.request.folder / "work" / f"{digest}.{name}"
        for kept in list(folder.iterdir()) if folder.is_dir() else ():
            if trials not in kept.name.split("."):
                continue
            if kept.is_dir():
                shutil.rmtree(kept, ignore_errors=True)
            else:
                kept.unlink(missing_ok=True)

    def retry(self) -> None:
        """Go on with what crashed, failed or ran out of time here; tuners that keep their records have lost nothing.

        Kernels that could not be built again are asked for once more.
        """
        for key, tuned in list(self.results.tuned.items()):
            if tuned.reason.startswith(NOT_AGAIN):
                self.results.tuned[key] = replace(tuned, reason="")
            if tuned.status in ("timeout", "crash", "failed") and tuned.environment not in self.elsewhere:
                del self.results.tuned[key]

    def prepare(self, cases: Sequence[Case]) -> None:
        """Have each case that is not finished as the line needs it."""
        labels = [t.label for t in self.request.tuners]
        missing = [c for c in cases if not self._prepared(c) and not self.results.finished(c.digest, labels)]
        if not missing:
            return
        every = self._prepare(missing)
        for case in missing:
            if case.digest not in {p.case.digest for p in every}:  # one of them broke the process of all
                every += self._prepare([case]) or [Prepared(case, reason="its process ended while it was made")]
        for prepared in every:
            self.results.add(prepared)

    def model(self, model: dict[str, Any]) -> tuple[Case, ...]:
        """The tasks of a model as cases."""
        arguments = {**model, "target": self.request.target, "folder": str(self.request.folder)}
        done = self._job("tasks", arguments, JOB_S)
        if done.status != "ok":
            raise BadInput(f"its tasks cannot be had: {done.reason}", str(model["file"]), "try 'roller-tvm tune' on it")
        found = [_prepared(data) for data in done.value]
        for prepared in found:
            self.results.add(prepared)
        return tuple(prepared.case for prepared in found)

    def whole_models(
        self, names: Sequence[str], shapes: Mapping[str, Sequence[int]] | None = None, layout: str | None = None
    ) -> tuple[Case, ...]:
        """Whole models as cases, by their names (see ``whole.zoo.find_model``); TVM converts them to a layout."""
        arguments = {"names": list(names), "shapes": shapes, "layout": layout, "folder": str(self.request.folder)}
        done = run_job(WHOLE_MODELS, "prepare", arguments, JOB_S, self.request.threads)
        if done.status != "ok":
            raise BadInput(f"the models cannot be had: {done.reason}", ", ".join(names), "see above")
        found = [_prepared(data) for data in done.value]
        for prepared in found:
            self.results.add(prepared)
        return tuple(prepared.case for prepared in found)

    def run(self, cases: Sequence[Case], progress: Progress | None = None, until: float = float("inf")) -> bool:
        """Do all that is missing; False where time was up before the end (``time.monotonic``)."""
        for case in cases:
            self._whole_here(case)
            for tuner in self.request.tuners:
                tuned = self.results.tuned.get((case.digest, tuner.label))
                if tuned is None:
                    if time.monotonic() > until:
                        return False
                    tuned = self.tune(case, tuner)
                    self.results.add(tuned)
                if progress is not None:
                    progress(case, tuner, tuned)
            self.time(case)
        return True

    def tune(self, case: Case, tuner: Tuner) -> Tuned:
        """One tuner on one case."""
        r = self.request
        prepared = self.results.prepared[case.digest]
        refusal = prepared.reason or tuner.refusal(r.line, r.device.kind, "model" if case.whole else "operator")
        if refusal:
            return Tuned(case.digest, tuner.label, "unsupported", refusal, environment=self.environment)
        arguments = {**self._task(case), "tuner": tuner.name, "trials": tuner.trials}
        log = self._log(f"{case.id.replace('/', '_')}.{tuner.label.replace(':', '_')}.log")
        if case.whole:
            arguments["edge"] = r.edge
        module = WHOLE_MODELS if case.whole else r.edge
        busy, before = quiet.wait(r.quiet_s, self.pace, least=0.0) if r.quiet_s > 0 else (math.nan, math.nan)
        done = run_job(module, "tune", arguments, r.limit(tuner, case.whole), r.threads, log)
        of: dict[str, Any] = {"case": case.digest, "tuner": tuner.label, "environment": self.environment,
                              "busy": busy, "pace": (before + self.pace()) / 2}  # fmt: skip
        if done.status != "ok":
            return Tuned(status=done.status, reason=done.reason, **of)
        try:
            return Tuned(**{"status": "ok", **of, **done.value})
        except (TypeError, ValueError) as error:
            return Tuned(status="failed", reason=f"what it says makes no sense: {error}", **of)

    def time(self, case: Case) -> None:
        """Time the kernels of a case, unless just these were timed already; those that are gone are built again."""
        if self.results.timed_all(case.digest):
            return
        working = self.results.working(case.digest)
        again = working if case.whole else {label: self._built_again(case, tuned) for label, tuned in working.items()}
        kernels = tuple((n, tuned.kernel) for n, tuned in again.items() if self._is_there(tuned.kernel))
        known = case.digest in self.results.timed and len(kernels) < len(working)
        for label, tuned in again.items():
            if tuned != working[label]:  # under the files' old names, if times are known by them
                self.results.add(replace(tuned, kernel=working[label].kernel) if known else tuned)
        if not kernels or known:
            return  # a kernel that cannot be had again: what all took together stays known
        busy, before = quiet.wait(self.request.quiet_s, self.pace)
        done = self._time(case, kernels)
        if done.status != "ok":  # one of them does not run alone: find out which
            kernels = tuple(k for k in kernels if self._runs_alone(case, *k))
            done = self._time(case, kernels)
        if done.status == "ok" and kernels:
            pace = (before + self.pace()) / 2
            self.results.add(Timed(case.digest, kernels, done.value, self.environment, busy, pace))

    def pace(self) -> float:
        """How fast the CPU runs just now; nan where nobody asked for a quiet machine."""
        if not self.request.quiet_s > 0:
            return math.nan
        if self._pace is None:
            here = self.results.environments.get(self.environment, {})
            seen = (e for e in self.results.environments.values() if machines.same(e, here))
            self._pace = Pace(self.request.device, max((float(e.get("gflops") or 0) for e in seen), default=0.0))
        return self._pace()

    # -- parts --------------------------------------------------------------------------------------------------

    def _job(self, function: str, arguments: dict[str, Any], limit_s: float) -> Any:
        return run_job(self.request.edge, function, arguments, limit_s, self.request.threads)

    def _time(self, case: Case, kernels: Sequence[tuple[str, str]]) -> Done:
        """Seconds of each kernel, round by round."""
        r = self.request
        files = [str(r.folder / kernel) for _, kernel in kernels]
        arguments: dict[str, Any] = {"kernels": files, "target": r.target}
        if case.whole:
            return run_job(LATENCY, "time", {**arguments, "seconds": r.latency_s}, JOB_S, r.threads)
        rounds: list[list[float]] = [[] for _ in kernels]
        for _ in range(PROCESSES):
            done = run_job(r.edge, "time", {**arguments, "rounds": ROUNDS}, JOB_S, r.threads)
            if done.status != "ok":
                return done
            for taken, some in zip(rounds, done.value, strict=True):
                taken += some
        return Done("ok", rounds)

    def _task(self, case: Case) -> dict[str, Any]:
        """What every job on a case is told."""
        r = self.request
        file = r.folder / self.results.prepared[case.digest].file
        return {"task": str(file), "case": case.to_json(), "target": r.target, "folder": str(r.folder)}

    def _log(self, name: str) -> Path:
        logs = self.request.folder / "logs"
        logs.mkdir(exist_ok=True)
        return logs / name

    def _is_there(self, kernel: str) -> bool:
        return (self.request.folder / kernel).exists()

    def _built_again(self, case: Case, tuned: Tuned) -> Tuned:
        """With a kernel of which only the schedule is known (results alone were brought here), or why not."""
        if self._is_there(tuned.kernel):
            return tuned
        r, (name, _, trials) = self.request, tuned.tuner.partition(":")
        arguments = {**self._task(case), "tuner": name, "trials": int(trials or 0), "schedule": tuned.schedule}
        done = run_job(r.edge, "build_again", arguments, JOB_S, r.threads, self._log(BUILT_AGAIN))
        if done.status != "ok":
            return replace(tuned, reason=f"{NOT_AGAIN} {done.reason}")
        return replace(tuned, kernel=done.value, reason="" if tuned.reason.startswith(NOT_AGAIN) else tuned.reason)

    def _whole_here(self, case: Case) -> None:
        """Begin a case anew that another machine has not finished: all of it is to be of one."""
        other = self._elsewhere(case.digest)
        if not other or self.results.finished(case.digest, [t.label for t in self.request.tuners]):
            return
        self.results.add(Forgotten(case.digest, other, times=True))
        for work in (self.request.folder / "work").glob(f"{case.digest}.*"):
            shutil.rmtree(work, ignore_errors=True)

    def _elsewhere(self, digest: str) -> tuple[str, ...]:
        """Tuners whose results of a case are of another machine."""
        return tuple(t.tuner for t in self.results.tuned_of(digest) if t.environment in self.elsewhere)

    def _prepared(self, case: Case) -> bool:
        known = self.results.prepared.get(case.digest)
        return known is not None and (not known.file or readable(self.request.folder / known.file))

    def _prepare(self, cases: Sequence[Case]) -> list[Prepared]:
        arguments = {"cases": [c.to_json() for c in cases], "target": self.request.target,
                     "folder": str(self.request.folder)}  # fmt: skip
        done = self._job("prepare", arguments, JOB_S + TRIAL_S * len(cases))
        return [_prepared(data) for data in done.value] if done.status == "ok" else []

    def _runs_alone(self, case: Case, label: str, kernel: str) -> bool:
        done = self._time(case, [(label, kernel)])
        if done.status != "ok":
            told = f"its kernel cannot be timed: {done.status} {done.reason}"
            self.results.add(Tuned(case.digest, label, "failed", told, environment=self.environment))
        return bool(done.status == "ok")


def _prepared(data: dict[str, Any]) -> Prepared:
    return Prepared(**{**data, "case": Case.from_json(data["case"])})
