"""``tune`` for Relay models; `tuning.tune` does the work."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.errors import BadInput, must_be
from roller_tvm.relay.line import LINE
from roller_tvm.tuning.line import Model
from roller_tvm.tuning.machine import threads_for
from roller_tvm.tuning.remote import Tracker
from roller_tvm.tuning.results import TunedTask, TuneResult
from roller_tvm.tuning.selection import not_negative
from roller_tvm.tuning.session import Limits
from roller_tvm.tuning.supervise import WORKER
from roller_tvm.tuning.tune import Options, Progress
from roller_tvm.tuning.tune import tune as tune_tasks
from roller_tvm.tvm_env import import_relay_tvm

__all__ = ["TuneResult", "TunedTask", "tune"]


def tune(
    mod: Any,
    params: Any = None,
    target: Any = "llvm",
    log_file: str | os.PathLike[str] | None = None,
    trials: int = 10,
    device: DeviceSpec | str | None = None,
    tasks: str | Iterable[int] = "all",
    top: int = 10,
    progress: Progress | None = None,
    limits: Limits | None = None,
    worker: str = WORKER,
    fuse_rtasks: Any = False,
    seconds: float | None = None,
    tracker: str | None = None,
    key: str | None = None,
) -> TuneResult:
    """Plan every operator of a model, measure the best plans, and write records.

    Parameters
    ----------
    mod : tvm.IRModule
    params : dict of str to array, optional
        The same as for ``relay.build``.
    target : str or tvm.target.Target
    log_file : path, optional
        Records are appended; tasks that it has already are not tuned again.
    trials : int
        Number of best plans to measure per operator; 0 plans without measuring.
    device : DeviceSpec or str, optional
        A device, its name or its spec file; by default the one that the target names.
    tasks : 'all', '0,2,3-5' or numbers
    top : int
        Plans to construct, at least `trials`.
    progress : function of (TunedTask, number of tasks), optional
        Called as each task is done.
    tracker, key : str, optional
        host:port of TVM's RPC tracker, and the key of the servers that measure; by default this machine does.
    seconds : float, optional
        Start no further task after so many seconds; the tasks with the most work come first.
    fuse_rtasks : bool or tvm.transform.Pass
        Run ``FuseRTasks`` (or the given pass) first, and tune the operators outside of its kernels. The result then has
        its `fusion`, and the `module` to build.

    Returns
    -------
    TuneResult

    Raises
    ------
    NothingTuned
        Not one task got a working plan; failures by kind are in the message.
    BadInput, TargetError, RecordError, DiskFull
        Bad arguments or files. Records written before are intact, also after Ctrl-C.

    Examples
    --------
    >>> result = tune(mod, params, "llvm", log_file="records.json")
    >>> lib = build(mod, params, result.target, "records.json")
    """
    trials = not_negative("trials", trials)
    tvm = import_relay_tvm("tuning a Relay model")
    if isinstance(mod, tvm.relay.Function):  # what TVM's extract_tasks takes too
        mod = tvm.IRModule.from_expr(mod)
    if not isinstance(mod, tvm.IRModule):
        raise BadInput(must_be("mod", "an IRModule", mod), remedy="import the model first: roller_tvm.relay.importers")
    made = LINE.target(target)
    spec = LINE.device(device, made)
    # Each worker is a process with a TVM of its own: no more of them than there are candidates at a time.
    workers = min(threads_for(spec), max(1, trials)) if spec.kind == "cpu" else None
    options = Options(
        trials, top=top, tasks=tasks, workers=workers, limits=limits or Limits(), worker=worker, fuse=fuse_rtasks,
        seconds=seconds, progress=progress, tracker=Tracker.of(tracker, key),
    )  # fmt: skip
    return tune_tasks(LINE, Model(mod, params), LINE.records(log_file, made), spec, options)
