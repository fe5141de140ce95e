"""A model from import to execution, over the protocol of a TVM line: the work of the short API and of the command."""

from __future__ import annotations

import copy
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roller_tvm.device import parse_target
from roller_tvm.errors import BadInput, NotPlanned, UnplannedWarning, UsageError
from roller_tvm.folders import work_folder
from roller_tvm.memory import check_memory, seldom_collected
from roller_tvm.models.arguments import Signature
from roller_tvm.models.choices import builds, prepares
from roller_tvm.models.line import Job, ModelLine, Request
from roller_tvm.models.package import REPORT
from roller_tvm.tvm_env import use_threads
from roller_tvm.tvm_env.compiler import is_foreign, linking_for

if TYPE_CHECKING:
    from roller_tvm.models.importing import Model
    from roller_tvm.models.package import LoadedModel
    from roller_tvm.tuning.remote_run import Server


class Session:
    """A model with its target, its device and its records; the target's mistakes are found before the model is read.

    Parameters
    ----------
    line : ModelLine
    request : Request
    where : str
        The name of the device in messages.

    Attributes
    ----------
    aim : Aim
        Target and device in full.
    name : str
        The model's name in messages.
    threads : int or None
        Threads that the device scales to; None if it is no CPU.
    server : Server or None
        Runs the model, instead of this process.
    """

    name: str
    _job: Job

    def __init__(self, line: ModelLine, request: Request, where: str = "device") -> None:
        self.line, self.request = line, request
        if request.prove:
            _check_proof(request)
        self.aim = line.aim(request.target, request.device, where)
        if request.cuda_graph and (line.folder != "relax" or self.aim.target.kind.name != "cuda"):
            raise UsageError("CUDA graphs are of NVIDIA GPUs, on the Relax line", "cuda_graph", "leave it out")
        self.records, self.schedules = request.records, request.schedules
        self.threads = self.aim.device.units if self.aim.device.kind == "cpu" else None
        self.server: Server | None = None
        self._built: Any = None
        self._reread: Callable[[], Model] | None = None
        self.forms: Mapping[str, Any] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if self.records is not None and line.is_empty(Path(self.records)):
            raise BadInput("holds no records", os.fspath(self.records), "tune first, or leave the records out")
        use_threads(request.threads, self.threads)  # constants are folded by running kernels

    def read(self, model: Any) -> Session:
        """Import a model from a file or from memory; return the session."""
        asked = self.request
        self._tell("import")

        def imported() -> tuple[str, Model]:
            found: tuple[str, Model] = self.line.importer.import_model(
                model, asked.shapes, asked.layout, asked.params, asked.example_inputs, asked.trusted,
                asked.dynamic_shapes,
            )
            return found

        return self.take(*imported(), lambda: imported()[1])

    def take(self, name: str, model: Model, again: Callable[[], Model] | None = None) -> Session:
        """Take an imported model, and a function that imports it again; return the session."""
        self.name, asked, self._reread = name, self.request, again
        if self.records is not None:
            self._form({**self.line.choices(Path(self.records), self.aim).forms, **self.forms})
        for extent in (*asked.bounds, *asked.likely):
            if extent not in model.symbols:
                known = f"its open extents are {', '.join(model.symbols)}" if model.symbols else "leave the bounds out"
                raise BadInput(f"has no open extent '{extent}'", name, known)
        self._job = Job(
            model, self.aim, asked.buckets, asked.tf32, asked.winograd, asked.fast_math,
            bounds=asked.bounds, likely=asked.likely, prove=asked.prove, cuda_graph=asked.cuda_graph,
        )
        if self.request.fuse_rtasks:
            self._job = replace(self._job, fuse=self.line.fusion(self._job, self.request.policy))
        self._job = self.line.formed(self._job, self.forms)
        return self

    def _form(self, values: Mapping[str, Any]) -> None:
        """Take the values of a form for the next job."""
        self.forms = {**self.forms, **values}
        if self.threads is not None:
            self.threads = values.get("threads", self.threads)

    def formed(self, values: Mapping[str, Any]) -> Session | None:
        """Return this session with the values of a form; None if the model cannot be read again."""
        made = copy.copy(self)
        made._built = None if builds(values) else self._built
        made._form(values)
        if not prepares(values):
            made._job = self.line.formed(self._job, values)
            return made
        return None if self._reread is None else made.take(self.name, self._reread(), self._reread)

    def adopt(self, place: Path) -> None:
        """Take the forms that an exploration has kept beside the records of a place."""
        values = self.line.choices(place, self.aim).forms
        if values != self.forms and (made := self.formed(values)) is not None:
            self.become(made)

    def become(self, other: Session) -> None:
        """Go on as another session of the same model."""
        self._job, self._built, self.forms, self.threads = other._job, other._built, other.forms, other.threads

    @property
    def inputs(self) -> Signature:
        """Name -> (shape, dtype) of each input."""
        return self._job.model.inputs

    @property
    def notes(self) -> tuple[str, ...]:
        """Rewrites that the importer needed, checks that were left out."""
        return self._job.model.notes

    @property
    def job(self) -> Job:
        """The job with its module prepared, once."""
        if self.line.lays_out and not self._job.prepared:
            self._tell("layouts")
            self._job = self.line.prepared(self._job)
        return self._job

    def tasks(self) -> list[Any]:
        """Return the operators to tune, each with `id`, `name`, `flops`, `weight` and `key`."""
        return self.line.tasks(self.job)

    def tune(self, trials: int, place: Any = None, tasks: Any = "all", **options: Any) -> Any:
        """Tune into records, by default a temporary place, and build with them from now on; return a `TuneResult`."""
        place = self.place_for(place)
        self.adopt(place)
        result = self.line.tune(self.job, place, trials, tasks, **options)
        self.records, self.schedules, self._built = place, "roller", None
        return result

    def built(self, progress: Any = None) -> Any:
        """Return the built model, once; `progress` receives each step, "plan 2 of 9: fused_conv2d" say."""
        if self._built is None:
            check_memory()
            with seldom_collected():
                job = self.job if self.schedules == "roller" else self._job
                self._tell("build")
                built = self.line.build(job, self.records, self.schedules, self.request.threads or job.threads,
                                        progress or self._tell)  # fmt: skip
            self._check_planned(getattr(built, REPORT).left() if self.schedules == "roller" else "")
            self._built = built
        return self._built

    def _check_planned(self, left: str) -> None:
        """Tell the kernels that Roller did not plan, once; refuse them where only Roller's are wanted."""
        if left and self.request.strict:
            remedy = "leave strict out, or name the sizes of open extents (buckets)"
            raise NotPlanned(left, self.name, remedy)
        if left:
            warnings.warn(left, UnplannedWarning, stacklevel=4)

    def forget(self) -> None:
        """Build anew the next time, with the records as they are then."""
        self._built = None

    def place_for(self, place: Any = None) -> Path:
        """Return where records go: the given place, those that the model was built with, or a temporary one."""
        place = place or self.records
        if place is None:
            self._folder = self._folder or work_folder()
            place = Path(self._folder.name, self.line.place)
        return Path(place)

    def fused(self) -> Any:
        """Return the report of ``fuse_rtasks``."""
        return self.line.fused(self._job, self.built())

    def on_pocl(self) -> Mapping[str, Any]:
        """Execute the fused kernels in OpenCL by PoCL; return the result of each by name."""
        return self.line.on_pocl(self.job, self.request.policy)

    def use_threads(self) -> int:
        """Have runs of the model take its threads; return their number."""
        if self.server is not None:
            return self.server.use_threads(self.request.threads or self.threads or 1)
        return use_threads(self.request.threads, self.threads)

    def load(self) -> LoadedModel:
        """Return the model, ready to run here or on its server.

        Raises
        ------
        UsageError
            It is for a machine of another architecture.
        """
        if self.server is not None:
            with linking_for(self.triple):
                return self.line.sent(self.built(), self.inputs, self.server)
        if is_foreign(self.triple):
            raise UsageError(f"is for {self.triple} and cannot run here", self.name, "save it, and run it there")
        return self.line.loaded(self.built(), self.name)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model to a file."""
        with linking_for(self.triple):
            return self.line.save(self.built(), path)

    @property
    def triple(self) -> str:
        """The target's triple, '' if it names none."""
        return str(parse_target(self.aim.target).attrs.get("mtriple", ""))

    def _tell(self, step: str) -> None:
        if self.request.progress is not None:
            self.request.progress(step)


def _check_proof(request: Request) -> None:
    """Refuse a proof of TVM's own schedules, and one without isl."""
    from roller_tvm.schedules.proofs import library

    if request.schedules == "tvm":
        raise UsageError("TVM's own schedules are not proven", "prove", "leave the proof or schedules='tvm' out")
    library()
