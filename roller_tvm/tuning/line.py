"""Line: what Roller asks of a line of TVM. `relay/line.py` and `relax/line.py` answer, everything else exists once.

A worker process asks less (`WorkerSide`, `Workload`), so that it starts without the planner: `relay/worker_side.py` and
`relax/worker_side.py`. One process has one TVM, so `this_line` and `worker_side` find theirs by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from roller_tvm.errors import UsageError
from roller_tvm.tvm_env.locate import usable_line

if TYPE_CHECKING:  # workers need nothing of it
    import numpy as np

    from roller_tvm.device import DeviceSpec
    from roller_tvm.tuning.candidates import Candidates
    from roller_tvm.tuning.claims import Claims
    from roller_tvm.tuning.measurer import Work
    from roller_tvm.tuning.results import TunedTask


# -- features ---------------------------------------------------------------------------------------------------------


class Feature(NamedTuple):
    """An ability that not every line has: its name for users, and what to do on a line without it."""

    words: str
    remedy: str


FEATURES = {
    "buckets": Feature("planning open extents for named sizes", "use --input-shapes"),
    "tf32": Feature("products of float32 on tensor cores", "leave it out, or take the Relax line: --line relax"),
    "names": Feature("choosing operators by their names", "give their numbers: tasks='0,2'"),
    "shared_records": Feature("several tuners of the same records at a time", "wait for the other, or give a place"),
    "winograd": Feature("convolutions by Winograd's algorithm", "take the Relay line"),
}


class NotOnThisLine(UsageError):
    """A feature was asked for that this line of TVM has not."""


def require(line: Line, feature: str) -> None:
    """Raise ``NotOnThisLine`` if a line lacks a feature."""
    if feature not in line.features:
        told = FEATURES[feature]
        raise NotOnThisLine(f"not on the {line.name.capitalize()} line", told.words, told.remedy)


# -- values -----------------------------------------------------------------------------------------------------------


class Model(NamedTuple):
    """A module of a line's graph language, and values of its parameters."""

    mod: Any
    params: Any = None


class Tasks(list[Any]):
    """The tasks of a model: its distinct operators.

    A task has an `id` (its position), a `name`, a `weight` (its calls in the model; 0 for one that only a build by TVM
    alone looks for), a `key` (the same for the same operator, in other processes too), and the `flops` of a call.

    Attributes
    ----------
    left : tuple of str
        Functions that TVM makes no task of: they are not plain loops, or have a dynamic shape.
    weight_bytes : int
        Bytes of all weights of the model.
    """

    left: tuple[str, ...] = ()
    weight_bytes: int = 0


# -- a line -----------------------------------------------------------------------------------------------------------


class Records(Protocol):
    """The results of tunings, in a line's own format: a plain TVM applies them.

    Attributes
    ----------
    place : str or None
        File or folder; None for records that are not kept.
    target : Target
        Target of the kernels: the given one, or the same said by the records in more words.
    notes : sequence of str
        Remarks for the result of a tuning.
    untimed : str
        How they mark a time that was predicted.
    """

    place: str | None
    target: Any
    notes: Sequence[str]
    untimed: str

    def claims(self) -> Claims:
        """Return the claims by which several tuners share the tasks."""

    def known(self, task: Any, trials: int) -> TunedTask | None:
        """Return a task's result if an earlier tuning with so many trials recorded it, or left it to TVM."""

    def write(self, tuned: TunedTask, schedule: Any, trials: int, seconds: float) -> list[str]:
        """Record a winner's schedule, or that TVM's own kernel stays (None); return remarks for the result.

        Parameters
        ----------
        trials : int
            Plans measured; 0 if the winner was chosen by prediction.
        seconds : float
            Time spent on building and measuring.
        """

    def best_seconds(self, task: Any) -> float:
        """Return the time by which the task's record is chosen, or nan."""

    def report(self, text: str) -> None:
        """Keep a tuning's summary beside the records, if there is room for it."""

    def close(self) -> None:
        """Let other processes write."""


class Line(Protocol):
    """A line of TVM.

    Attributes
    ----------
    name : {'relay', 'relax'}
    features : frozenset of str
        Keys of ``FEATURES``.
    """

    @property
    def name(self) -> str: ...
    @property
    def features(self) -> frozenset[str]: ...

    # Tuning: used by tuning/tune.py, relay/tuning.py, relax/tuning.py, auto_scheduler/ and relax/components.py.

    def target(self, target: Any) -> Any:
        """Return the Target that a user means; raise ``TargetError``."""

    def device(self, device: DeviceSpec | str | None, target: Any) -> DeviceSpec:
        """Return a device of that name or file, or the target's; raise ``TargetError`` if it does not fit."""

    def records(self, place: Any, target: Any) -> Records:
        """Open the records at a place; None keeps none."""

    def tasks(self, model: Model, target: Any, device: DeviceSpec, names: Sequence[str] | None = None) -> Tasks:
        """Return a model's distinct operators, those with one of these texts in their names if any are given."""

    def without_fused(self, model: Model, target: Any, device: DeviceSpec, fuse: Any = True) -> tuple[Model, Any]:
        """Return a model whose groups of operators ``FuseRTasks`` has fused, and its report (None: nothing is fused).

        `fuse` is the pass, or True for one with defaults.
        """

    def candidates(self, task: Any, device: DeviceSpec, top: int) -> Candidates:
        """Return the best plans of a task and how to schedule them; its `reason` says why there is none."""

    def record(self, task: Any, schedule: Any, target: Any) -> str:
        """Return a schedule as the line of text that workers build it from."""

    def default(self, task: Any, target: Any) -> str:
        """Return TVM's own kernel as workers take it; '' if there is none."""

    def work(self, task: Any, target: Any) -> Work:
        """Return a task as workers open it."""

    # ==================================================================================================================
    # MODEL SIDE (importing, building, packages, sessions, CLI): load, build, save, open, ... stand below this line.
    # ==================================================================================================================


# -- a worker's side --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Built:
    """A kernel built in this process.

    Parameters
    ----------
    module : Module
        TVM's; its function `name` is the kernel.
    tensors : sequence
        Arguments of the kernel, each with `shape` and `dtype`.
    outputs, weights : tuple of int
        Positions among them of results, and of weights of the model.
    exported : object
        Has ``export_library``.
    """

    module: Any
    name: str
    tensors: Sequence[Any]
    outputs: tuple[int, ...]
    weights: tuple[int, ...] = ()
    exported: Any = None


def in_order(inputs: Sequence[Any], results: Sequence[Any], outputs: Sequence[int]) -> list[Any]:
    """Return inputs and results in the order of a kernel's arguments, whose results are at positions `outputs`.

    Examples
    --------
    >>> in_order(["a", "b"], ["y"], (1,))
    ['a', 'y', 'b']
    """
    ins, outs = iter(inputs), iter(results)
    return [next(outs) if n in outputs else next(ins) for n in range(len(inputs) + len(results))]


class Workload(Protocol):
    """A task opened in a worker.

    Attributes
    ----------
    target : Target
    tensors, outputs
        As of ``Built``, without packed weights.
    terms : int
        Length of the one sum that rounds as much as the whole task.
    """

    target: Any
    tensors: Sequence[Any]
    outputs: tuple[int, ...]
    terms: int

    def reference(self) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
        """Return the task as TVM alone computes it on a CPU: a function of its inputs that returns its results."""

    def build(self, line: str, mode: int) -> Built:
        """Build a candidate from its record, as a model's build does; raise ``Failed`` with the kind of failure."""

    def build_default(self, text: str) -> Built:
        """Build TVM's own kernel."""

    def spilled(self, line: str) -> int:
        """Build a candidate and load nothing; return the bytes of local memory a thread that it spills to, or 0."""


class WorkerSide(Protocol):
    """A line of TVM in a worker process."""

    def warm_up(self) -> None:
        """Import what building needs, so that no candidate's time includes it."""

    def code(self) -> AbstractContextManager[Any]:
        """Return the context in which a worker builds kernels."""

    def device(self, kind: str) -> Any:
        """Return TVM's device for a kind of target; raise ``ValueError`` if it knows none."""

    def tensor(self, values: np.ndarray, device: Any) -> Any:
        """Return an array on a device."""

    def open(self, text: str, target: str, weights: Sequence[Any]) -> Workload:
        """Open a task; `text` and `weights` are those of its ``Work``."""


@lru_cache(maxsize=1)
def this_line() -> Line:
    """Return the line of the TVM that is here; raise ``NoTvm`` without one."""
    line: Line = import_module(f"roller_tvm.{usable_line('tuning').value}.line").LINE
    return line


@lru_cache(maxsize=1)
def worker_side() -> WorkerSide:
    """Return the worker's side of the TVM that is here; raise ``NoTvm`` without one."""
    side: WorkerSide = import_module(f"roller_tvm.{usable_line('measuring').value}.worker_side").SIDE
    return side
