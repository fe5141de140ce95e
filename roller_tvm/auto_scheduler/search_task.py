"""TVM's ``SearchTask`` and the functions around it, tuned by Roller."""

# ruff: noqa: F403
from __future__ import annotations

import functools
import warnings
from typing import Any

import tvm
from tvm.auto_scheduler import search_task as _ansor
from tvm.auto_scheduler.search_task import *
from tvm.target import Target

from roller_tvm.auto_scheduler.dispatcher import ApplyHistoryBest
from roller_tvm.auto_scheduler.plans import device_for
from roller_tvm.auto_scheduler.search_policy import RollerPolicy, RollerWarning
from roller_tvm.errors import BadInput, RollerError
from roller_tvm.relay.records import load_for_build
from roller_tvm.relay.reference import reference_schedule
from roller_tvm.relay.tasks import hardware_params


class TuningOptions(_ansor.TuningOptions):  # type: ignore[misc]
    """Tuning options; parameters as TVM's.

    Parameters
    ----------
    num_measure_trials : int
        Number of the best plans to measure, limited by the number of plans (see ``search_policy.Params``). With 0
        nothing is measured: the callbacks get one record per task, with its predicted time.
    early_stopping : int, optional
        Number of trials without an improvement after which tuning stops.
    num_measures_per_round : int
        Most States handed to the builder at a time.
    verbose : int
    builder, runner : ProgramBuilder, ProgramRunner or 'local'
    measure_callbacks : list of MeasureCallback, optional

    Examples
    --------
    >>> options = TuningOptions(10, measure_callbacks=[RecordToFile("records.json")])
    """


class SearchTask(_ansor.SearchTask):  # type: ignore[misc]
    """A TVM ``SearchTask`` that Roller tunes; its workload keys and records are TVM's.

    Examples
    --------
    >>> task = SearchTask(func=matmul, args=(1024, 1024, 1024), target="llvm -mcpu=core-avx2")
    >>> task.tune(TuningOptions(10, measure_callbacks=[RecordToFile("records.json")]))
    >>> schedule, args = task.apply_best("records.json")
    """

    @functools.wraps(_ansor.SearchTask.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*_with_hardware_params(args, kwargs), **kwargs)

    @classmethod
    def of(cls, task: Any) -> SearchTask:
        """Return the given TVM task as one that Roller tunes."""
        made = cls.__new__(cls)
        made.__setstate__(task.__getstate__())
        return made

    def tune(self, tuning_options: Any, search_policy: Any = None, adaptive_training: bool = False) -> None:
        """Plan, measure and record the task; with an Ansor policy given, search as Ansor does."""
        if search_policy is None:
            search_policy = RollerPolicy(self, verbose=int(tuning_options.verbose))
        super().tune(tuning_options, search_policy, adaptive_training)

    def apply_best(
        self, log_file: str, include_compatible: bool = False, layout_rewrite_option: Any = None
    ) -> tuple[Any, Any]:
        """Return the best recorded schedule and its arguments; without a record, warn and return an untuned schedule.

        Lines of the file that are not records (half a line, say) are skipped.
        """
        state, lacking = self._best_of(log_file, include_compatible)
        if state is None:
            warnings.warn(f"{lacking}: an untuned schedule instead", RollerWarning, stacklevel=2)
            return untuned(self)
        return self.compute_dag.apply_steps_from_state(state, layout_rewrite_option or self.layout_rewrite_option)

    def print_best(self, log_file: str, print_mode: str = "schedule") -> str:
        """Return the best recorded schedule as Python, or as CUDA source if `print_mode` is "cuda".

        Raises
        ------
        RuntimeError
            The file has no record of the task; TVM raises the same error.
        """
        state, lacking = self._best_of(log_file, False)
        if state is None:
            raise RuntimeError(lacking)
        if print_mode == "schedule":
            return str(self.compute_dag.print_python_code_from_state(state))
        if print_mode != "cuda":
            raise ValueError(f"Invalid print_mode: {print_mode}")
        schedule, args = self.compute_dag.apply_steps_from_state(state)
        target = self.target if self.target.kind.name == "cuda" else "cuda"
        return str(tvm.build(schedule, args, target).imported_modules[0].get_source())

    def _best_of(self, log_file: str, include_compatible: bool) -> tuple[Any, str]:
        """Return the State of the best record for the task's target and '', or None and the reason."""
        try:
            history = ApplyHistoryBest(load_for_build(log_file), include_compatible=include_compatible)
        except BadInput as error:
            return None, str(error)
        state = history._query_inside(self.target, self.workload_key, "")
        return state, "" if state is not None else f"{log_file}: no valid record of {self.workload_key}"


def untuned(task: Any) -> tuple[Any, Any]:
    """Return an untuned schedule of a task that runs, and its arguments."""
    from tvm import te
    from tvm.auto_scheduler import RandomModel, SketchPolicy

    tensors = list(task.compute_dag.tensors)
    if task.target.kind.name in ("llvm", "c"):
        return reference_schedule([t for t in tensors if not isinstance(t.op, te.PlaceholderOp)]), tensors
    # Loops must be bound to threads: what Ansor would try first.
    auto_schedule = tvm.get_global_func("auto_scheduler.AutoSchedule")
    schedule, args = auto_schedule(SketchPolicy(task, RandomModel(), verbose=0), TuningOptions(0, verbose=0))
    return schedule, list(args)


def create_task(
    func: Any, args: Any, target: Any, target_host: Any = None, hardware_params: Any = None
) -> SearchTask:
    """Return a task of a registered function. TVM deprecated this for ``SearchTask``; scripts that call it still run.

    Examples
    --------
    >>> task = create_task(matmul, (512, 512, 512), "llvm")
    """
    return SearchTask(func=func, args=args, target=target, target_host=target_host, hardware_params=hardware_params)


def auto_schedule(task: Any, search_policy: Any = None, tuning_options: Any = None) -> tuple[Any, Any]:
    """Tune a task; return its best schedule and arguments. TVM deprecated this for ``SearchTask.tune``.

    Examples
    --------
    >>> schedule, args = auto_schedule(task, tuning_options=TuningOptions(10))
    >>> kernel = tvm.build(schedule, args, task.target)
    """
    from tvm.auto_scheduler import _ffi_api

    options = TuningOptions() if tuning_options is None else tuning_options
    policy = RollerPolicy(task, verbose=int(options.verbose)) if search_policy is None else search_policy
    if not isinstance(policy, RollerPolicy):
        schedule, args = _ffi_api.AutoSchedule(policy, options)
        return schedule, list(args)
    state = policy.search(options)
    if state is None:
        return untuned(task)
    return task.compute_dag.apply_steps_from_state(state, task.layout_rewrite_option)


def hardware_params_for(target: Any) -> Any:
    """Return Ansor's parameters of a GPU that is not in this machine, else None: TVM then asks the device."""
    if target.kind.name in ("llvm", "c"):
        return None
    try:
        if tvm.device(target.kind.name, 0).exist:
            return None
        return hardware_params(target, device_for(None, target))
    except (RollerError, ValueError, tvm.TVMError):
        return None  # TVM's own error says what it needs


def _with_hardware_params(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the positional arguments unchanged; add missing hardware parameters to `kwargs`."""
    given = dict(zip(("func", "args", "compute_dag", "workload_key", "target", "target_host", "hardware_params"), args,
                     strict=False), **kwargs)  # fmt: skip
    if given.get("target") is not None and given.get("hardware_params") is None and len(args) < 7:
        target = Target.canon_target_and_host(given["target"], given.get("target_host"))[0]
        kwargs["hardware_params"] = hardware_params_for(target)
    return args


def __getattr__(name: str) -> Any:
    return getattr(_ansor, name)


