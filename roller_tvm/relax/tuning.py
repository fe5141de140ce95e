"""``tune`` for Relax modules and PrimFuncs; `tuning.tune` does the work."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..device import DeviceSpec
from ..tuning.line import Model
from ..tuning.remote import Tracker
from ..tuning.results import TuneResult
from ..tuning.selection import not_negative
from ..tuning.session import Limits
from ..tuning.supervise import WORKER
from ..tuning.tune import TOP, Options, Progress
from ..tuning.tune import tune as tune_tasks
from ..tvm_env import import_relax_tvm


def tune(
    mod: Any,
    params: Any = None,
    target: Any = None,
    work_dir: str | os.PathLike[str] | None = None,
    max_trials_global: int | None = None,
    *,
    max_trials_per_task: int | None = None,
    op_names: Sequence[str] | None = None,
    tasks: str | Sequence[int] = "all",
    database: Any = "json",
    module_equality: str = "structural",
    device: DeviceSpec | str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    limits: Limits | None = None,
    worker: str = WORKER,
    fuse_rtasks: Any = False,
    seconds: float | None = None,
    tracker: str | None = None,
    key: str | None = None,
) -> tuple[Any, TuneResult]:
    """Plan every PrimFunc of a module, measure the best plans, and record the winners in a MetaSchedule database.

    Parameters
    ----------
    mod : IRModule, PrimFunc or relax.Function
        Legalized and fused. Functions that are scheduled already are left alone.
    params : dict of str to tensor, optional
        Bound to the function 'main'.
    target : Target, dict or str
        By default the one in whose scope this is called.
    work_dir : path, optional
        Of the database's files; made if it is missing. Tasks that it has records of are not tuned again.
    max_trials_global : int, optional
        Plans measured in all, spread over the tasks; by default as many as each task may have. 0 plans without
        measuring: the best plan by prediction whose answer is right is recorded.
    max_trials_per_task : int, optional
        By default 10.
    op_names : sequence of str, optional
        Tune only functions in whose names one of these is.
    tasks : str or sequence of int
        Of these, tune "all", or "0,2,3-5".
    database : Database, 'json' or 'memory'
    device : DeviceSpec or str, optional
        By default the one that follows from the target.
    workers : int, optional
        Processes that build; by default one for each core.
    progress : function of (TunedTask, number of tasks), optional
        Called as each task is done.
    tracker, key : str, optional
        host:port of TVM's RPC tracker, and the key of the servers that measure; by default this machine does.
    seconds : float, optional
        Start no further task after so many seconds; the tasks with the most work come first.
    fuse_rtasks : bool or FuseRTasks
        For models that are built so: what `FuseRTasks` makes one kernel of on a GPU is planned by it, and not tuned.
        On a CPU every function is tuned, and `build` decides by the records which run side by side.

    Returns
    -------
    (Database, TuneResult)

    Raises
    ------
    NothingTuned
        Not one task got a working plan; failures by kind are in the message.
    BadInput, TargetError, RecordError, DiskFull
        Bad arguments or files. Records written before are intact, also after Ctrl-C.

    Examples
    --------
    >>> database, result = tune(mod, target=target, work_dir="records")
    """
    import_relax_tvm("tuning a Relax module")
    from .database import Store  # with TVM, which the line above knows to be of this line
    from .line import LINE, RelaxRecords

    per_task = not_negative("max_trials_per_task", max_trials_per_task, TOP)
    total = None if max_trials_global is None else not_negative("max_trials_global", max_trials_global)
    given = LINE.target(target)
    with Store(work_dir, given, database, module_equality) as store:
        options = Options(
            per_task, total, TOP, tasks, op_names, workers, limits or Limits(), worker, fuse_rtasks, seconds, progress,
            Tracker.of(tracker, key),
        )
        device = LINE.device(device, store.target)
        result = tune_tasks(LINE, Model(mod, params), RelaxRecords(store, given), device, options)
        return store.database, result
