"""The protocol of a TVM line's models: import, tune, build, save, open, run, emulate. Imports no TVM.

`relay/model_line.py` and `relax/model_line.py` implement it, thinly. All that uses a model is written once, over it:
`session.Session`, the short API, the commands.
"""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..device import DeviceSpec
from ..tvm_env import Line
from .choices import Choices, Form

if TYPE_CHECKING:  # imported when used: running a built model needs neither planner nor importer
    from ..roller.rprogram import Plan
    from ..session import Session
    from ..tuning.explorable import Explorable
    from ..tuning.remote_run import Server
    from .arguments import Signature
    from .importing import Importer, Model
    from .package import LoadedModel

#: From a target (None: as asked) and a place for records to the command that tunes the model into it.
Retune = Callable[["str | None", str], str]
#: Values of `schedules`: Roller's first plan for operators without a record, or TVM's own schedule.
SCHEDULES = ("roller", "tvm")


@dataclass(frozen=True)
class Request:
    """The arguments of `roller_tvm.compile` beside the model, and those that the command has on top.

    Parameters
    ----------
    buckets : dict or list, optional
        Relax: sizes of open extents to plan for.
    tf32 : bool
        Relax: products of float32 on tensor cores.
    winograd : bool
        Relax: whether Winograd's algorithm may compute 3x3 convolutions. It is less exact (`te.winograd`).
    fast_math : bool
        CPUs: erf and tanh of float32 within 8 units in the last place, not 2, in less time.
    trusted : bool
        Read a model's file that is a program (.pt2, a module).
    bounds : mapping of name to (int, int)
        Least and most of open extents.
    likely : mapping of name to int
        Sizes of open extents to plan for before others.
    strict : bool
        Kernels that Roller did not plan are an error.
    prove : bool
        Kernels are proven; a refuted one is an error.
    cuda_graph : bool
        Relax, NVIDIA GPUs: kernels are captured in CUDA graphs.
    policy : str
        How ``fuse_rtasks`` schedules, one of `rammer.POLICIES`.
    """

    target: Any = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    example_inputs: Sequence[Any] | None = None
    params: Any = None
    records: str | os.PathLike[str] | None = None
    schedules: str = SCHEDULES[0]
    layout: str | None = None
    device: DeviceSpec | str | None = None
    threads: int | None = None
    fuse_rtasks: bool = False
    progress: Callable[[str], None] | None = None
    buckets: Any = None
    tf32: bool = False
    winograd: bool = True
    fast_math: bool = False
    policy: str = "best"
    trusted: bool = False
    dynamic_shapes: Any = None
    strict: bool = False
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    likely: Mapping[str, int] = field(default_factory=dict)
    prove: bool = False
    cuda_graph: bool = False


@dataclass(frozen=True)
class Aim:
    """The target and device of a build.

    Parameters
    ----------
    words : str or dict
        The target as a user of the line writes it, in full.
    target : tvm.target.Target
    device : DeviceSpec
    """

    words: str | dict[str, Any]
    target: Any
    device: DeviceSpec


@dataclass(frozen=True)
class Job:
    """A model to be tuned or built.

    Parameters
    ----------
    model : Model
    aim : Aim
    buckets, tf32, winograd, fast_math, bounds, likely, prove, cuda_graph
        See `Request`.
    fuse : tvm.transform.Pass or False
        The line's ``FuseRTasks``.
    prepared : bool
        Whether the module is legalized and fused already (Relax).
    arranged : str, optional
        The arrangement of activations to insist on (``PlanLayout``).
    threads : int, optional
        Threads of TVM's pool, unless the user gives another number.
    connected : bool
        Relax, CPUs: calls are connected by their tiles though that is not predicted to pay.
    packed : bool
        Relay: whether weights are rearranged when the model is built.
    """

    model: Model
    aim: Aim
    buckets: Any = None
    tf32: bool = False
    winograd: bool = True
    fast_math: bool = False
    fuse: Any = False
    prepared: bool = False
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    likely: Mapping[str, int] = field(default_factory=dict)
    prove: bool = False
    cuda_graph: bool = False
    arranged: str | None = None
    threads: int | None = None
    connected: bool = False
    packed: bool = True


class ModelLine(ABC):
    """Everything that one of TVM's lines does with a model.

    A method imports its part of the line when it is called: running a built model needs nothing of the planner.

    Attributes
    ----------
    folder : str
        Folder of the line's modules.
    output, example : str
        Name of a built model: the default of ``compile``, and one to show.
    place : str
        Name of a temporary place for records: a file or a folder.
    lays_out : bool
        Whether a build lays activations out for the device, so that records are for that device's layouts.
    """

    folder: str
    output: str
    example: str
    place: str
    lays_out: bool

    @property
    def importer(self) -> Importer:
        """The importer of models."""
        found: Importer = importlib.import_module(f"roller_tvm.{self.folder}.importers").IMPORTER
        return found

    @property
    def package(self) -> Any:
        """The module with the line's files of built models."""
        return importlib.import_module(f"roller_tvm.{self.folder}.package")

    # Before the model is read: mistakes should not cost its import -----------------------------------------

    def check_options(self, request: Request) -> None:  # noqa: B027
        """Refuse options of the command that this line lacks."""

    @abstractmethod
    def aim(self, target: Any, device: DeviceSpec | str | None, where: str) -> Aim:
        """Return target and device in full; by default this CPU. `where` names the device in errors."""

    @abstractmethod
    def check_place(self, place: Path, aim: Aim) -> None:
        """Refuse a place that records cannot be written to, or one with records of another target."""

    @abstractmethod
    def check_records(self, place: Path, aim: Aim, retune: Retune) -> None:
        """Refuse a place without records for a target; `retune` gives the remedy."""

    def is_empty(self, place: Path) -> bool:
        """Return True for a place that holds no records, as far as that is known before the build."""
        return False

    @abstractmethod
    def holds_records(self, place: Path) -> bool:
        """Return True for a place with records, which a build can take."""

    # Tuning and building -----------------------------------------------------------------------------------

    @abstractmethod
    def fusion(self, job: Job, policy: str) -> Any:
        """Return the pass ``FuseRTasks`` for a job."""

    def prepared(self, job: Job) -> Job:
        """Return the job with the module that tasks are taken from."""
        return job

    @abstractmethod
    def tasks(self, job: Job) -> list[Any]:
        """Return the tasks that ``FuseRTasks`` leaves, each with `id`, `name`, `flops`, `weight` and `key`."""

    @abstractmethod
    def tune(self, job: Job, place: Any, trials: int, tasks: Any, **options: Any) -> Any:
        """Tune tasks ("all", or numbers) into a place for records; return a `TuneResult`.

        `options` are progress, limits and seconds, as for the line's ``tune``.
        """

    @abstractmethod
    def build(self, job: Job, records: Any, schedules: str, threads: int | None, progress: Any) -> Any:
        """Return the built model, TVM's own object."""

    @abstractmethod
    def operator_seconds(
        self, built: Any, loaded: LoadedModel, inputs: Mapping[str, Any], folder: Path
    ) -> dict[str, float]:
        """Return the seconds of each operator of a built model in a few runs, all its calls together.

        Parameters
        ----------
        folder : Path
            For what that takes.
        """

    def operator_of(self, kernel: str) -> str:
        """Return the operator that a kernel of a built model was made of."""
        return kernel

    @abstractmethod
    def sent(self, built: Any, inputs: Signature, server: Server) -> LoadedModel:
        """Return a built model that runs on a server."""

    @abstractmethod
    def state_of(self, place: Path) -> Path:
        """Return the file with the state of an exploration whose records go to a place."""

    @abstractmethod
    def explorable(
        self, job: Job, built: Any, records: Any, top: int, share: Callable[[str], float], least: float, folder: Path,
        threads: int, memory_bytes: int, tell: Callable[[str], None], server: Server | None,
    ) -> Explorable:  # fmt: skip
        """Return a model in one library with the best plans of each operator, each checked.

        Parameters
        ----------
        built : object
            The model as `build` has built it with these records.
        share : function of the name of an operator
            Its share of the time of a run. It has a plan more for each `least` of that, up to `top`.
        folder : Path
            For the library, as long as it is explored.
        memory_bytes : int
            Most bytes of weights in further layouts.
        server : Server, optional
            Runs the model, instead of this process.
        """

    @abstractmethod
    def forms(self, job: Job, threads: int) -> Sequence[Form]:
        """Return the forms of a model that are no choice of one operator; `threads` are those in use."""

    @abstractmethod
    def choices(self, place: Path, aim: Aim) -> Choices:
        """Return what an exploration has chosen beside the records of a place."""

    @abstractmethod
    def choose(self, place: Path, aim: Aim, choices: Choices) -> None:
        """Keep choices beside the records of a place."""

    def formed(self, job: Job, values: Mapping[str, Any]) -> Job:
        """Return a job with the values of a form; not prepared yet, if they `choices.prepares`."""
        made = replace(job, **{name: value for name, value in values.items() if name != "fuse"})
        return replace(made, fuse=self.fusion(made, "best")) if values.get("fuse") else made

    def predicted(self, job: Job) -> Counter[tuple[float, str]]:
        """Return how often a run calls a kernel of predicted seconds and plan, nothing compiled; none if unknown."""
        return Counter()

    def changes(self, session: Session, made: Session, form: Form) -> str:
        """Return why a session's form is no other model, or ''."""
        return ""

    def terms(self, job: Job) -> int:
        """Return the terms of one sum that rounds as much as all of a prepared job's operators in a row."""
        return 1

    @abstractmethod
    def fused(self, job: Job, built: Any) -> Any:
        """Return the report of a job's ``fuse_rtasks``."""

    @abstractmethod
    def on_pocl(self, job: Job, policy: str) -> Mapping[str, Any]:
        """Execute the fused kernels in OpenCL by PoCL; return the result of each by name."""

    # Built models ------------------------------------------------------------------------------------------

    def check_output(self, path: str | os.PathLike[str]) -> Path:
        """Return a path that a model can be written to."""
        return Path(self.package.FORMAT.check_output(path))

    def save(self, built: Any, path: str | os.PathLike[str]) -> Path:
        """Write a built model, whole or not at all."""
        return Path(self.package.save_model(built, path))

    def loaded(self, built: Any, where: str) -> LoadedModel:
        """Return a model built in this process, ready to run; `where` names it in errors."""
        found: LoadedModel = self.package.LoadedModel.of_built(built, where=where)
        return found

    def open(self, path: Path, device: str = "") -> LoadedModel:
        """Return a model's file, ready to run."""
        found: LoadedModel = self.package.LoadedModel(path, device)
        return found

    @abstractmethod
    def emulate(self, path: Path, checked: bool, told: Any) -> Any:
        """Return the file of a model for cuda whose kernels run on this CPU: `inputs`, `kind` and `run`."""

    # One operator ------------------------------------------------------------------------------------------

    @abstractmethod
    def read(self, tensors: Sequence[Any]) -> Any:
        """Return the TensorExpression of TE tensors (inputs, then outputs)."""

    @abstractmethod
    def check_plan(self, plan: Plan, tensors: Sequence[Any], arch: str, on_pocl: bool) -> Iterator[Any]:
        """Execute a plan's kernels on this CPU and compare: yield the words of the emulator, and then of PoCL."""

    @abstractmethod
    def prove(self, tensors: Sequence[Any], steps: Sequence[Any], device: DeviceSpec) -> Any:
        """Return the `Proof` of a schedule's kernels (``schedules.proofs``)."""

    @abstractmethod
    def levels(self, tensors: Sequence[Any], steps: Sequence[Any], device: DeviceSpec) -> Any:
        """Return the `Levels` of a schedule's kernels (``schedules.levels``)."""

    @abstractmethod
    def resources(self, ranked: Any, tensors: Sequence[Any], device: DeviceSpec) -> Any:
        """Compile a ranked plan's kernels; return a `CompiledPlan`, or a `Rejection`."""


def model_line(line: Line) -> ModelLine:
    """Return the implementation of a line."""
    found: ModelLine = importlib.import_module(f"roller_tvm.{line.value}.model_line").LINE
    return found
