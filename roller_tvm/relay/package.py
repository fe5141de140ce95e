"""Built models on disk: a package as TVMC writes and runs it (.tar), or one shared library (.so)."""

from __future__ import annotations

import errno
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from roller_tvm.errors import BadInput, RollerError, ToolchainError, TvmLineError, UsageError, cannot_write
from roller_tvm.tuning.kernel_times import Call, KernelTime, kernel_times, tensor_words
from roller_tvm.tuning.model_report import ModelReport, report_of
from roller_tvm.tuning.package_members import add_members
from roller_tvm.tvm_env import import_relay_tvm
from roller_tvm.tvm_env.compiler import require_compiler
from roller_tvm.tvm_env.library import is_cut_off

# What is inside a package, in TVMC's names.
LIBRARY, GRAPH, PARAMS = "mod.so", "mod.json", "mod.params"
#: Attribute of the result of `building.build` for cuda: the kernels' source, for `run --emulate`.
KERNELS = "roller_tvm_kernels"
#: Attribute of the result of `building.build`: its `ModelReport`, which `save_model` stores in the file.
REPORT = "roller_tvm_report"
#: TVM's constructor of an executor that reports the time of each kernel.
DEBUG = "tvm.graph_executor_debug.create"
REMEDY = "give what 'roller-tvm compile', or tvmc, wrote on the Relay line (.tar or .so)"
SUFFIXES = (".tar", ".so")


def check_output(path: str | os.PathLike[str]) -> Path:
    """Return a path that a model can be written to; checked before the model is built."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise UsageError(
            f"'{path}' ends in neither .tar nor .so",
            "--output",
            "model.tar is a package as TVMC writes it, model.so one library",
        )
    if not path.parent.is_dir():
        raise BadInput("no such folder", str(path.parent), f"mkdir -p {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise BadInput("the folder cannot be written to", str(path.parent), "give another --output")
    if path.is_dir():
        raise BadInput("is a folder", str(path), "give another --output")
    require_compiler(str(path))
    return path


def save_params(params: Any) -> bytes:
    """Return weights as the bytes of a parameter file."""
    from tvm import relay

    return bytes(relay.save_param_dict(params))


def save_model(library: Any, path: str | os.PathLike[str]) -> Path:
    """Write the result of ``relay.build``; on failure no file is left.

    Examples
    --------
    >>> save_model(build(mod, params, target, "records.json"), "model.tar")  # doctest: +SKIP
    """
    path = check_output(path)
    try:
        with tempfile.TemporaryDirectory(prefix=".roller-tvm-", dir=path.parent) as folder:
            made = Path(folder, path.name)
            if path.suffix == ".so":
                library.export_library(str(made))
            else:
                library.get_lib().export_library(str(Path(folder, LIBRARY)))
                Path(folder, GRAPH).write_text(library.get_graph_json())
                Path(folder, PARAMS).write_bytes(save_params(library.get_params()))
                with tarfile.open(made, "w") as tar:
                    for name in (LIBRARY, GRAPH, PARAMS):
                        tar.add(Path(folder, name), name)
            for kept in (getattr(library, KERNELS, None), getattr(library, REPORT, None)):
                if kept is not None:
                    add_members(made, kept.members())
            os.replace(made, path)
    except OSError as error:
        raise _cannot_write(error, path) from error
    except RuntimeError as error:  # the C++ compiler that links the library
        if "No space left" in str(error):
            raise _cannot_write(OSError(errno.ENOSPC, ""), path) from error
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise ToolchainError(
            f"the library cannot be linked: {lines[-1] if lines else error}",
            str(path),
            "run 'roller-tvm doctor': a C++ compiler is needed",
        ) from error
    return path


def _cannot_write(error: OSError, path: Path) -> RollerError:
    full, other = "no space left to write the model; nothing was written", "give another --output"
    return cannot_write(error, path, full, f"free some space, or {other}", other)


class LoadedModel:
    """A built model, ready to run on a device.

    Attributes
    ----------
    inputs : dict
        Name -> (shape, dtype), in argument order.
    kind : str
        "cpu", "cuda", ...
    report : ModelReport
        The schedules of its kernels.

    Examples
    --------
    >>> model = LoadedModel("model.tar")  # doctest: +SKIP
    >>> outputs = model.run({"x": array})  # doctest: +SKIP
    """

    inputs: dict[str, tuple[tuple[int, ...], str]]
    report: ModelReport

    def __init__(self, path: str | os.PathLike[str], device: str = "") -> None:
        path = Path(path)
        if not path.is_file():
            raise BadInput("is a folder" if path.is_dir() else "no such file", str(path), REMEDY)
        tvm = import_relay_tvm("running a model")
        from tvm.contrib import graph_executor

        weights: set[str] = set()
        try:
            if tarfile.is_tarfile(path):
                with tempfile.TemporaryDirectory(prefix="roller-tvm-") as folder:
                    graph, params = unpack(path, folder)
                    library = tvm.runtime.load_module(str(Path(folder, LIBRARY)))
                self._choose(library, device, str(path))
                self.module = graph_executor.create(graph, library, self.device)
                self.module.load_params(params)
                self._debug = partial(_debug, library, self.device, graph, params)
            elif path.suffix != ".so":
                raise BadInput("is not a model of the Relay line", str(path), REMEDY)
            elif is_cut_off(path):
                raise BadInput("is half of a library", str(path), "compile the model again")
            else:
                library = tvm.runtime.load_module(str(path))
                self._choose(library, device, str(path))
                self.module = graph_executor.GraphModule(library["default"](self.device))
                self._debug = partial(_debug, library, self.device)
                weights = weights_of(library)
        except (tvm.TVMError, RuntimeError, AttributeError, OSError, EOFError, tarfile.TarError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise BadInput(
                f"is not a model of the Relay line: {lines[-1] if lines else error}", str(path), REMEDY
            ) from error
        self._read_inputs(weights)
        self.report = report_of(path)

    @classmethod
    def of_library(cls, library: Any, device: str = "", where: str = "model") -> LoadedModel:
        """Return a model that `building.build` made in this process."""
        import_relay_tvm("running a model")
        from tvm.contrib import graph_executor

        model = cls.__new__(cls)
        model._choose(library.get_lib(), device, where)
        model.module = graph_executor.GraphModule(library["default"](model.device))
        params = bytearray(save_params(library.get_params()))
        model._debug = partial(_debug, library.get_lib(), model.device, library.get_graph_json(), params)
        model._read_inputs(set(library.get_params()))
        model.report = getattr(library, REPORT)
        return model

    def _choose(self, library: Any, device: str, where: str) -> None:
        """Choose the device: the requested one, or the one of the library's kernels."""
        import tvm

        self.kind = device or _kind(library)
        try:
            self.device = tvm.device(self.kind, 0)
        except ValueError as error:
            raise BadInput(f"TVM knows no device '{device}'", where, "give cpu or cuda, or leave it out") from error
        if not self.device.exist:
            remedy = "run it where there is one, on this CPU with --emulate, or compile it with --target llvm"
            raise BadInput(f"needs a {self.kind} device, there is none here", where, remedy)

    def _read_inputs(self, weights: set[str]) -> None:
        shapes, dtypes = self.module.get_input_info()
        self.inputs = {
            str(n): (tuple(int(e) for e in shapes[n]), str(dtypes[n]))
            for n in sorted(shapes, key=lambda name: int(self.module.get_input_index(str(name))))
            if str(n) not in weights
        }

    def run(self, inputs: Mapping[str, Any], on_device: bool = False) -> list[Any]:
        """Return the outputs as numpy arrays, or (`on_device`) as tensors of the device with ``__dlpack__``."""
        set_inputs(self.module, inputs)
        self.module.run()
        self.device.sync()
        outputs = [self.module.get_output(i) for i in range(self.module.get_num_outputs())]
        # The executor overwrites its own outputs in the next run.
        return [output.copyto(self.device) if on_device else output.numpy() for output in outputs]

    def times(self, inputs: dict[str, Any], number: int, repeat: int) -> list[float]:
        """Return `repeat` times in seconds, each the mean of `number` runs."""
        set_inputs(self.module, inputs)
        return [float(t) for t in self.module.benchmark(self.device, number=number, repeat=repeat).results]

    def kernel_times(self, inputs: Mapping[str, Any], repeat: int) -> list[KernelTime]:
        """Return the time of each kernel, over `repeat` runs that TVM's debug executor observes call by call.

        Raises
        ------
        TvmLineError
            TVM was built without its profiler.
        """
        import tvm

        if tvm.get_global_func(DEBUG, allow_missing=True) is None:
            remedy = "use a TVM that was built with USE_PROFILER, as 'roller-tvm install-tvm' installs"
            raise TvmLineError("this TVM has no profiler", "--profile", remedy)
        observed = self._debug()
        set_inputs(observed, inputs)
        observed.run()
        return kernel_times([list(_calls(observed.module["profile"]([]))) for _ in range(repeat)])


def set_inputs(module: Any, inputs: Mapping[str, Any]) -> None:
    """Set the inputs of a graph executor, whatever their names.

    ``set_input(**inputs)`` confuses inputs called 'key' and 'value' with its own arguments.
    """
    import tvm

    for name, array in inputs.items():
        if module.get_input_index(name) >= 0:  # the graph may have no use for one
            plain = isinstance(array, (np.ndarray, tvm.nd.NDArray)) or not hasattr(array, "__dlpack__")
            module.set_input(name, array if plain else tvm.nd.from_dlpack(array))


def _debug(library: Any, device: Any, graph: str = "", params: bytearray | None = None) -> Any:
    """Return an executor that reports the time of each kernel; `graph` is needed if the library does not hold it.

    TVM's own class for this writes every tensor of a run to files.
    """
    import tvm
    from tvm.contrib import graph_executor

    if not graph:
        return graph_executor.GraphModule(library["debug_create"]("default", device))
    made = tvm.get_global_func(DEBUG)(graph, library, device.device_type, device.device_id)
    module = graph_executor.GraphModule(made)
    module.load_params(params)
    return module


def _calls(report: Any) -> Iterator[Call]:
    """Yield the calls of a profiler's report, without views of memory."""
    for call in report.calls:
        name, took = str(call["Name"]), float(call["Duration (us)"].microseconds) * 1e-6
        if name != "__nop":
            tensors = re.findall(r"(\w+)\[([\d, ]*)\]", str(call.get("Argument Shapes", "")))
            words = tuple(tensor_words([int(e) for e in shape.split(",") if e], dtype) for dtype, shape in tensors)
            yield Call(name, words, took)


def weights_of(library: Any) -> set[str]:
    """Return the names of the graph's inputs that are weights held by the library."""
    try:
        return {str(name) for name in library["get_graph_params"]()}
    except AttributeError:  # an older TVM
        graph = json.loads(library["get_graph_json"]())
        names = [graph["nodes"][n]["name"] for n in graph["arg_nodes"]]
        return {name for name in names if re.fullmatch(r"p\d+", name)}  # relay.build calls them so


def unpack(path: Path, folder: str) -> tuple[str, bytearray]:
    """Return a package's graph and parameters; extracts its library into the folder."""
    with tarfile.open(path) as tar:
        names = set(tar.getnames())
        lacking = [n for n in (LIBRARY, GRAPH, PARAMS) if n not in names]
        if lacking:
            raise BadInput(f"holds no {', '.join(lacking)}", str(path), REMEDY)
        for name in (LIBRARY, GRAPH, PARAMS):
            member = tar.extractfile(name)
            assert member is not None
            Path(folder, name).write_bytes(member.read())
    return Path(folder, GRAPH).read_text(), bytearray(Path(folder, PARAMS).read_bytes())


def _kind(library: Any) -> str:
    """Return the kind of device that a library's kernels need."""
    todo = [library]
    while todo:
        module = todo.pop()
        if module.type_key in ("cuda", "rocm", "opencl", "vulkan", "metal"):
            return str(module.type_key)
        todo += module.imported_modules
    return "cpu"
