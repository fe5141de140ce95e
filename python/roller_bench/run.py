"""Run a comparison: each tuner on each case in a process of its own, then all kernels of a case timed in turns."""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roller_bench.cases import Case
from roller_bench.jobs import Done, run_job
from roller_bench.learned import machine_of
from roller_bench.machine import environment, others
from roller_bench.quiet import wait
from roller_bench.results import NOT_AGAIN, Forgotten, Prepared, Results, Timed, Tuned
from roller_bench.task import readable
from roller_bench.tuners import Tuner
from roller_tvm.errors import BadInput, MeasureError, RecordError

#: Time limit of a job in seconds, and the addition for each trial (building, measuring, searching).
JOB_S, TRIAL_S = 900.0, 30.0
#: Number of processes in which an operator's kernels are timed, and rounds in each. A process's memory pages decide up
#: to a fifth of a kernel's time, and differently for each kernel.
PROCESSES, ROUNDS = 5, 4
#: Number of operators of a model assumed for time limits.
OPERATORS = 10
#: Module with the jobs of whole models.
WHOLE_MODELS = "roller_bench.whole"
#: Module that times whole models.
LATENCY = "roller_bench.latency"
#: Word in place of a tuner's name to repeat only the timing.
TIMES = "times"
#: Log of the jobs that only build.
BUILT_AGAIN = "built_again.log"

Progress = Callable[[Case, Tuner, Tuned], None]


@dataclass(frozen=True)
class Request:
    """The comparison to run.

    Parameters
    ----------
    edge : str
        Module of a line of TVM that does the work (``roller_bench.relay`` or ``.relax``);
        its whole models are in ``EDGE_models``.
    line, target : str
    device : DeviceSpec
        Device of the target.
    tuners : tuple of Tuner
    folder : Path
        Folder of all results; a comparison found there is resumed.
    threads : int
        Threads of each kernel.
    limit_s : float or None
        Seconds after which a job is given up; None derives the limit from the trials.
    latency_s : float
        Seconds of timing whole models, for each set of processes.
    quiet_s : float
        Longest wait in seconds, before tuning and timing, for a machine on which nothing else runs.
    mixed : bool
        True to allow cases from different machines, each case from one.
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
        """Return the time limit of a tuner on a case in seconds; for a model, Roller's trials count per operator."""
        often = OPERATORS if whole and not tuner.searches else 1
        return JOB_S * often + TRIAL_S * tuner.trials * often if self.limit_s is None else self.limit_s


class Comparison:
    """A comparison in a folder; use it in a ``with`` statement, because only one process at a time may write there.

    Examples
    --------
    >>> cases = load_suite("demo")
    >>> with Comparison(request) as comparison:
    ...     comparison.open()
    ...     comparison.prepare(cases)
    ...     comparison.run(cases)
    True
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        folder = request.folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"cannot create this folder: {error.strerror}", str(folder), "give another") from error
        self._lock: Any = None
        self._take_lock()
        try:
            self.results = Results(folder / "results.jsonl")
            self.environment = ""
            self.elsewhere: frozenset[str] = frozenset()
        except BaseException:  # also an interrupt: the folder's lock goes with it
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
        """Release the folder for other processes."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Comparison:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- steps --------------------------------------------------------------------------------------------------

    def open(self, only_report: bool = False) -> None:
        """Record this run's environment; for a report alone, use that of its figures.

        Raises
        ------
        RecordError
            The folder holds figures of another TVM, or of another machine without permission to mix them.
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
        self.elsewhere = others(self.results.environments, here, r.mixed, str(r.folder))
        if here["id"] not in self.results.environments:
            self.results.add(here)
        self.environment = str(here["id"])

    def forget(self, tuners: str, cases: Sequence[Case]) -> None:
        """Cancel the results of these tuners (names or labels, separated by commas) on these cases, to do them again.

        ``times`` cancels only times, and not those of a case of another machine: it would have to be tuned here first.
        """
        words = {w.strip() for w in tuners.split(",") if w.strip()}
        times, words = TIMES in words, words - {TIMES}
        known = {label for _, label in self.results.tuned} | {t.label for t in self.request.tuners}
        if unknown := words - known - {label.split(":")[0] for label in known}:
            raise BadInput(f"has no results of {', '.join(sorted(unknown))}", str(self.request.folder),
                           f"choose from {', '.join(sorted(known))}")  # fmt: skip
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
        """Remove kernels' files, because a schedule may now give another kernel; other tuners rebuild theirs."""
        for kernel in filter(None, kernels):
            path = self.request.folder / kernel
            path.unlink(missing_ok=True)
            path.with_suffix(".json").unlink(missing_ok=True)

    def _remove_work(self, digest: str, label: str) -> None:
        """Remove the files that a tuner resumes from, named by its trials: ``curve.64.jsonl``, a folder ``64``."""
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
        """Let cases that crashed, failed or timed out on this machine be tuned again; tuners resume from their records.

        Kernels that could not be built are tried once more.
        """
        for key, tuned in list(self.results.tuned.items()):
            if tuned.reason.startswith(NOT_AGAIN):
                self.results.tuned[key] = replace(tuned, reason="")
            if tuned.status in ("timeout", "crash", "failed") and tuned.environment not in self.elsewhere:
                del self.results.tuned[key]

    def prepare(self, cases: Sequence[Case]) -> None:
        """Prepare each unfinished case for the line of TVM."""
        labels = [t.label for t in self.request.tuners]
        missing = [c for c in cases if not self._prepared(c) and not self.results.finished(c.digest, labels)]
        if not missing:
            return
        every = self._prepare(missing)
        for case in missing:
            if case.digest not in {p.case.digest for p in every}:  # one of them broke the process of all
                every += self._prepare([case]) or [Prepared(case, reason="the process that prepared it ended")]
        for prepared in every:
            self.results.add(prepared)

    def model(self, model: dict[str, Any]) -> tuple[Case, ...]:
        """Return the tasks of a model as cases."""
        arguments = {**model, "target": self.request.target, "folder": str(self.request.folder)}
        done = self._job("tasks", arguments, JOB_S)
        if done.status != "ok":
            file = str(model["file"])
            what, _, remedy = done.reason.removeprefix(f"{file}: ").partition("\n  remedy: ")
            raise BadInput(f"no tasks extracted: {what}", file, remedy or "try 'roller-tvm tune' on it")
        found = [_prepared(data) for data in done.value]
        for prepared in found:
            self.results.add(prepared)
        return tuple(prepared.case for prepared in found)

    def whole_models(
        self, names: Sequence[str], shapes: Mapping[str, Sequence[int]] | None = None, layout: str | None = None
    ) -> tuple[Case, ...]:
        """Return whole models as cases, by name (see ``zoo.find_model``); `layout` is converted to by TVM."""
        arguments = {"names": list(names), "shapes": shapes, "layout": layout, "folder": str(self.request.folder)}
        done = run_job(WHOLE_MODELS, "prepare", arguments, JOB_S, self.request.threads)
        if done.status != "ok":
            raise BadInput(f"cannot prepare the models: {done.reason}", ", ".join(names), "see above")
        found = [_prepared(data) for data in done.value]
        for prepared in found:
            self.results.add(prepared)
        return tuple(prepared.case for prepared in found)

    def run(self, cases: Sequence[Case], progress: Progress | None = None, until: float = float("inf")) -> bool:
        """Do everything still missing; return False if the time `until` (``time.monotonic``) came before the end."""
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
        """Run one tuner on one case, and return the result."""
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
        busy = wait(r.quiet_s) if r.quiet_s > 0 else math.nan
        done = run_job(module, "tune", arguments, r.limit(tuner, case.whole), r.threads, log)
        of: dict[str, Any] = {"case": case.digest, "tuner": tuner.label, "environment": self.environment,
                              "busy": busy}  # fmt: skip
        if done.status != "ok":
            return Tuned(status=done.status, reason=done.reason, **of)
        try:
            return Tuned(**{"status": "ok", **of, **done.value})
        except (TypeError, ValueError) as error:
            return Tuned(status="failed", reason=f"its result is not valid: {error}", **of)

    def time(self, case: Case) -> None:
        """Time the kernels of a case unless exactly these were timed already; missing kernels are built again."""
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
        busy = wait(self.request.quiet_s)
        done = self._time(case, kernels)
        if done.status != "ok":  # one of them does not run alone: find out which
            kernels = tuple(k for k in kernels if self._runs_alone(case, *k))
            done = self._time(case, kernels)
        if done.status == "ok" and kernels:
            self.results.add(Timed(case.digest, kernels, done.value, self.environment, busy))

    # -- parts --------------------------------------------------------------------------------------------------

    def _job(self, function: str, arguments: dict[str, Any], limit_s: float) -> Any:
        return run_job(self.request.edge, function, arguments, limit_s, self.request.threads)

    def _time(self, case: Case, kernels: Sequence[tuple[str, str]]) -> Done:
        """Time each kernel in seconds, round by round."""
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
        """Return the arguments common to all jobs on a case."""
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
        """Return the result with its kernel, rebuilt from the schedule if missing, or with the reason of failure."""
        if self._is_there(tuned.kernel):
            return tuned
        r, (name, _, trials) = self.request, tuned.tuner.partition(":")
        arguments = {**self._task(case), "tuner": name, "trials": int(trials or 0), "schedule": tuned.schedule}
        done = run_job(r.edge, "build_again", arguments, JOB_S, r.threads, self._log(BUILT_AGAIN))
        if done.status != "ok":
            return replace(tuned, reason=f"{NOT_AGAIN} {done.reason}")
        return replace(tuned, kernel=done.value, reason="" if tuned.reason.startswith(NOT_AGAIN) else tuned.reason)

    def _whole_here(self, case: Case) -> None:
        """Cancel a case that another machine left unfinished, so that all of it comes from this machine."""
        other = self._elsewhere(case.digest)
        if not other or self.results.finished(case.digest, [t.label for t in self.request.tuners]):
            return
        self.results.add(Forgotten(case.digest, other, times=True))
        for work in (self.request.folder / "work").glob(f"{case.digest}.*"):
            shutil.rmtree(work, ignore_errors=True)

    def _elsewhere(self, digest: str) -> tuple[str, ...]:
        """Return the tuners whose results of a case are of another machine."""
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
