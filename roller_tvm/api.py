"""Models in a few lines: compile, run, save, load, report, tune, on the TVM line that is installed.

Importing this module imports no TVM. `session.Session` does the work, over the protocol of the line.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roller_tvm.errors import BadInput, UsageError, cannot_write, must_be
from roller_tvm.memory import seldom_collected
from roller_tvm.models import parse_shapes
from roller_tvm.models.arguments import Signature, by_name, checked
from roller_tvm.models.line import SCHEDULES, Request, model_line
from roller_tvm.models.shapes import checked_bounds, checked_likely
from roller_tvm.progress import progress_line
from roller_tvm.session import Session
from roller_tvm.tuning.kernel_times import KernelTime
from roller_tvm.tuning.model_report import ModelReport
from roller_tvm.tvm_env import use_threads
from roller_tvm.tvm_env.locate import usable_line

if TYPE_CHECKING:
    from roller_tvm.exploring import Serving
    from roller_tvm.models.package import LoadedModel

#: Runs in `Model.profile`.
RUNS = 10


class Model:
    """A built model, ready to run.

    Made by `compile` and `load`.

    Attributes
    ----------
    inputs : dict
        Name -> (shape, dtype), in the order of the arguments; an open extent is the name of its variable.
    device : str
        "cpu", "cuda", ...
    threads : int
        Threads of TVM's pool in each run.

    Examples
    --------
    >>> model = roller_tvm.compile("model.onnx")
    >>> y = model(x)
    >>> outputs = model.run({"x": x})
    >>> report = model.report()
    """

    def __init__(self, loaded: LoadedModel, name: str, threads: int | None, session: Session | None = None) -> None:
        self._loaded, self._name, self._session = loaded, name, session
        self._report = loaded.report
        self._serving: Serving | None = None
        self.threads = use_threads(threads, session.threads if session is not None else None)

    @property
    def inputs(self) -> Signature:
        """Name -> (shape, dtype) of each input."""
        return self._loaded.inputs if self._session is None else self._session.inputs

    @property
    def notes(self) -> tuple[str, ...]:
        """Rewrites that the importer needed, checks that were left out; empty for a loaded model."""
        return self._session.notes if self._session is not None else ()

    @property
    def device(self) -> str:
        """Kind of the device that runs the kernels."""
        return self._loaded.kind

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run the model: inputs by position or by name; returns the output, or a tuple of several.

        Raises
        ------
        BadInput
            An input is missing, unknown, or of another shape or type.
        """
        outputs = self.run(by_name(args, named, self.inputs, self._name))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def run(self, inputs: Mapping[str, Any], on_device: bool = False) -> list[Any]:
        """Run the model once.

        Parameters
        ----------
        inputs : mapping of name to array
            numpy arrays, or anything with ``__dlpack__`` (torch tensors, say).
        on_device : bool
            Return tensors of the model's device, which have ``__dlpack__``, instead of numpy arrays.

        Returns
        -------
        list of array

        Raises
        ------
        BadInput
            An input is missing, unknown, or of another shape or type.
        """
        arrays = checked(inputs, self.inputs, self._name)
        use_threads(self.threads)
        if self._serving is not None:
            outputs = self._serving.run(arrays, on_device)
            if self._serving.done:
                self._end_serving()
            return outputs
        return self._loaded.run(arrays, on_device)

    def times(self, inputs: Mapping[str, Any], number: int = 10, repeat: int = RUNS) -> list[float]:
        """Return `repeat` means of `number` runs, in seconds a run."""
        _check_count("number", number, "times")
        _check_count("repeat", repeat, "times")
        arrays = checked(inputs, self.inputs, self._name)
        use_threads(self.threads)
        return self._loaded.times(arrays, number, repeat)

    def profile(self, inputs: Mapping[str, Any], repeat: int = RUNS) -> list[KernelTime]:
        """Return the time of each kernel, the median of `repeat` runs, longest first; `report` shows it then."""
        _check_count("repeat", repeat, "profile")
        arrays = checked(inputs, self.inputs, self._name)
        use_threads(self.threads)
        times = self._loaded.kernel_times(arrays, repeat)
        self._report = self._report.with_times(times)
        return times

    def report(self) -> ModelReport:
        """Return the schedule of each kernel, its predicted time and, after `profile`, its measured time.

        It prints as a table and has `to_json`.
        """
        return self._report

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model: a library (.so), or on the Relay line a package as TVMC writes it (.tar).

        Raises
        ------
        UsageError, BadInput, DiskFull, ToolchainError
            A wrong ending, no such folder, no space left, no C++ compiler.
        """
        if self._session is not None:
            return self._session.save(path)
        source, path = Path(self._name), Path(path)
        if source.suffix != path.suffix:
            raise UsageError(f"'{path}' does not end in {source.suffix}", "save", f"the model is a {source.suffix}")
        if not path.resolve().parent.is_dir():
            raise BadInput("no such folder", str(path.parent), f"mkdir -p {path.parent}")
        try:
            return Path(shutil.copyfile(source, path))
        except OSError as error:
            raise cannot_write(error, path) from error

    def tune(
        self, trials: int = 10, records: str | os.PathLike[str] | None = None,
        progress: Callable[[Any, int], None] | None = None, seconds: float | None = None,
        tracker: str | None = None, key: str | None = None,
    ) -> Any:  # fmt: skip
        """Measure the best plans of each operator, record the winners, and go on with them.

        Parameters
        ----------
        trials : int
            Plans measured, each operator; 0 only checks the first plan.
        records : path, optional
            A file on the Relay line, a folder on the Relax line; one that is there is continued. By default the
            records that the model was compiled with, else a temporary place.
        progress : function of (TunedTask, number of tasks), optional
            Called as each operator is done.
        seconds : float, optional
            Start no further operator after so many seconds; those with the most work come first.
        tracker, key : str, optional
            host:port of TVM's RPC tracker and the key of the servers that measure; by default this machine does.

        Returns
        -------
        measure.results.TuneResult
            Prints as a table.

        Raises
        ------
        UsageError
            The model was loaded from a file, which has no operators to tune any more.
        NothingTuned
            Not one operator got a working plan; the model stays as it was.
        """
        if self._session is None:
            remedy = "compile the model again: roller_tvm.compile(...).tune()"
            raise UsageError("a loaded model cannot be tuned", self._name, remedy)
        result = self._session.tune(trials, records, progress=progress, seconds=seconds, tracker=tracker, key=key)
        self._take(self._session.load())
        return result

    def explore(
        self, inputs: Mapping[str, Any] | None = None, *, budget: float | None = None, runs: int | None = None,
        online: bool = False, top: int | None = None, records: str | os.PathLike[str] | None = None,
        progress: Callable[[Any], None] | None = None, tracker: str | None = None, key: str | None = None,
    ) -> Any:  # fmt: skip
        """Try the best plans of all operators at once, in runs of the model itself; go on with the winners.

        All plans are in one library. A run picks one for each operator and times it where it is used. Each plan's
        result was compared with a reference before.

        Parameters
        ----------
        inputs : mapping of name to array, optional
            By default seeded values.
        budget, runs : float, int, optional
            Stop after so many seconds of running, or so many runs; by default when nothing is left to try.
        online : bool
            Explore in the runs that follow, which answer as always: at their median at most about 1.2 times as slow.
            In the end, the model is built without the variants in the background.
        top : int, optional
            Plans of each operator; by default 5.
        records : path, optional
            As of `tune`, with the state of the exploration beside it: another exploration goes on from there.
        progress : function, optional
            Called now and then with the exploration; its `result` is the state.
        tracker, key : str, optional
            As of `tune`: a server runs the model, on its CPU. In the end the model runs here.

        Returns
        -------
        explore.result.ExploreResult or Serving
            The result prints as a table. With `online` its `result` is that, and its `stop` ends it.

        Raises
        ------
        UsageError
            The model was loaded from a file, is not for a CPU, or a tracker is to serve requests.
        MeasureError
            The tracker has no server, or loses all of them; the same call goes on.
        """
        if self._session is None:
            raise UsageError("a loaded model cannot be explored", self._name, "compile the model again")
        if budget is not None and budget <= 0:
            raise UsageError(must_be("budget", "seconds above 0", budget), "explore", "leave it out")
        for name, value in (("runs", runs), ("top", top)):
            if value is not None:
                _check_count(name, value, "explore")
        _check_path("records", records, "explore")
        from roller_tvm.exploring import TOP, ModelExploration, Serving
        from roller_tvm.tuning.remote import Tracker

        server = Tracker.of(tracker, key)
        arrays = None if inputs is None else checked(inputs, self.inputs, self._name)
        use_threads(self.threads)
        place = self._session.place_for(records)
        made = ModelExploration(self._session, place, arrays, TOP if top is None else top, online, tracker=server)
        if online:
            self._serving = Serving(made)
            return self._serving
        try:
            made.explore(budget, runs, progress)
        finally:  # after Ctrl-C, too: what is decided is recorded
            result = made.finish()
        self._take(made.start)
        self.threads = use_threads(self._session.request.threads, self._session.threads)
        return result

    def _take(self, loaded: LoadedModel) -> None:
        self._loaded, self._report = loaded, loaded.report

    def _end_serving(self) -> None:
        """Go on with the model that an exploration has ended with."""
        if self._serving is not None:
            self._take(self._serving.exploration.start)
            self._serving = None

    def __repr__(self) -> str:
        told = ", ".join(f"{name} {list(shape)} {dtype}" for name, (shape, dtype) in self.inputs.items())
        return f"<roller_tvm.Model {self._name}: {told}; {self.device}, {self.threads} threads>"


def compile(  # noqa: A001
    model: Any,
    target: Any = None,
    *,
    shapes: str | Mapping[str, Sequence[int]] | None = None,
    example_inputs: Sequence[Any] | None = None,
    dynamic_shapes: Any = None,
    params: Any = None,
    records: str | os.PathLike[str] | None = None,
    schedules: str = "roller",
    layout: str | None = None,
    device: Any = None,
    threads: int | None = None,
    fuse_rtasks: bool = False,
    progress: Callable[[str], None] | None = None,
    trusted: bool = False,
    winograd: bool = True,
    fast_math: bool = False,
    strict: bool = False,
    bounds: Mapping[str, tuple[int, int]] | None = None,
    likely: Mapping[str, int] | None = None,
    prove: bool = False,
    cuda_graph: bool = False,
) -> Model:
    """Build a model with Roller's schedules, planned while it is built.

    Parameters
    ----------
    model : path, onnx.ModelProto, torch.nn.Module, torch.export.ExportedProgram or tvm.IRModule
        A path names an ONNX model, an ExportedProgram (.pt2), or a module of the TVM line (.json; Relay: .relay).
    target : str, dict or tvm.target.Target, optional
        "llvm", "cuda -arch=sm_90", ...; by default this machine's CPU.
    shapes : mapping of input name to shape, or str, optional
        For inputs whose shape the model leaves open: ``{"x": (1, 3, 224, 224)}`` or ``"x:[1,3,224,224]"``.
    example_inputs : sequence of tensors
        Arguments to export a torch module with.
    dynamic_shapes : optional
        Relax line: dimensions of a torch module's inputs that stay open, as ``torch.export.export`` takes them.
    params : mapping of name to array, or path, optional
        Weights of a TVM module, or their file.
    records : path, optional
        Records of a tuning; operators without one get Roller's first plan.
    schedules : {'roller', 'tvm'}
        'tvm' takes TVM's own schedules instead of Roller's.
    layout : {'NCHW', 'NHWC'}, optional
        Convert convolutions to this layout.
    device : DeviceSpec or str, optional
        Device to plan for; by default the one that follows from the target.
    threads : int, optional
        By default TVM_NUM_THREADS, else all physical cores that this process may use.
    fuse_rtasks : bool
        Make one kernel of small operators if that is predicted to pay.
    progress : function of str, optional
        Receives each step, "plan 12 of 57: fused_conv2d" say; by default one line of the terminal shows it.
    trusted : bool
        Read a file that is a program, too (.pt2, a module): it can do whatever you can do.
    winograd : bool
        Relax line, CPUs: whether 3x3 convolutions may be computed by Winograd's algorithm where that is predicted to be
        faster; its errors are up to 20 times as large (some 1e-6 of the largest output).
    fast_math : bool
        CPUs: erf and tanh of float32 within 8 units in the last place, not 2, in 0.6 of the time.
    strict : bool
        Kernels that Roller did not plan are an error; by default an `UnplannedWarning` lists them.
    bounds : mapping of name to (int, int), optional
        Relax line: least and most of the model's open extents, ``{"n": (1, 512)}``; other sizes are refused.
    likely : mapping of name to int, optional
        Relax line: sizes of open extents to plan for before others, ``{"n": 128}``; all are served.
    prove : bool
        Prove each kernel by integer sets (``pip install 'roller-tvm[proof]'``), and execute those that stay undecided
        beside their reference; `Model.report` shows the answers.
    cuda_graph : bool
        Relax line, NVIDIA GPUs: kernels are captured in CUDA graphs in the first run; `Model.explore` tries both.

    Returns
    -------
    Model

    Raises
    ------
    NotPlanned
        With `strict`, Roller has no plan for a kernel.
    RefutedKernel, WrongAnswer
        With `prove`, a kernel is wrong.
    RollerError
        The model, a shape, the target or a file is wrong: each error names the thing and the remedy.

    Examples
    --------
    >>> model = roller_tvm.compile("model.onnx", shapes={"x": (1, 3, 32, 32)})
    >>> model(x).shape
    (1, 10)
    """
    if schedules not in SCHEDULES:
        raise UsageError(must_be("schedules", f"one of {', '.join(SCHEDULES)}", schedules), "compile", "leave it out")
    _check_path("records", records, "compile")
    given = parse_shapes(shapes) if isinstance(shapes, str) else _shapes(shapes)
    line = progress_line() if progress is None else contextlib.nullcontext(progress)
    with seldom_collected(), line as told:
        request = Request(
            target, given, example_inputs, params, records, schedules, layout, device, threads, fuse_rtasks, told,
            trusted=trusted, dynamic_shapes=dynamic_shapes, winograd=winograd, fast_math=fast_math, prove=prove,
            strict=strict, bounds=checked_bounds(bounds or {}), likely=checked_likely(likely or {}),
            cuda_graph=cuda_graph,
        )  # fmt: skip
        session = Session(model_line(usable_line("compiling a model")), request).read(model)
        loaded = session.load()
        session.request = replace(request, progress=progress)  # the line is gone
    return Model(loaded, session.name, threads, session)


def load(path: str | os.PathLike[str], device: str = "", *, threads: int | None = None) -> Model:
    """Open a model that `Model.save` or ``roller-tvm compile`` wrote.

    Parameters
    ----------
    path : path
    device : str
        "cpu", "cuda"; by default the one that the model was built for.
    threads : int, optional
        By default TVM_NUM_THREADS, else all physical cores that this process may use.

    Raises
    ------
    BadInput
        No such file, not a built model, or no such device here.

    Examples
    --------
    >>> y = roller_tvm.load("model.so")(x)
    """
    _check_path("path", path, "load")
    use_threads(threads)
    line = model_line(usable_line("running a model"))
    return Model(line.open(Path(path), device), os.fspath(path), threads)


def _check_path(name: str, given: Any, where: str) -> None:
    """Refuse what is neither a path nor None."""
    if given is not None and not isinstance(given, (str, os.PathLike)):
        raise UsageError(must_be(name, "a path", given), where, "give a str or a pathlib.Path")


def _check_count(name: str, given: Any, where: str) -> None:
    """Refuse a number of runs below 1."""
    if not isinstance(given, int) or given < 1:
        raise UsageError(must_be(name, "an int >= 1", given), where, "leave it out")


def _shapes(given: Mapping[str, Sequence[int]] | None) -> dict[str, tuple[int, ...]]:
    """Shapes as tuples of numbers from 1."""
    if given is not None and not isinstance(given, Mapping):
        told = must_be("shapes", "a mapping of input name to shape", given)
        raise UsageError(told, "compile", 'give {"x": (1, 3, 224, 224)}')
    found = {}
    for name, shape in (given or {}).items():
        extents = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
        if not all(isinstance(e, int) and not isinstance(e, bool) and e > 0 for e in extents):
            raise UsageError(must_be(f"shapes['{name}']", "ints >= 1", shape), "compile", "give (1, 3, 224, 224)")
        found[str(name)] = extents
    return found
