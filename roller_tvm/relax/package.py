"""Built models on disk: one shared library, which any TVM of the Relax line loads, and which says its inputs."""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadInput, RollerError, ToolchainError, UsageError, cannot_write
from ..models import last_line
from ..tuning.kernel_times import KernelTime, kernel_times
from ..tuning.model_report import ModelReport, report_of
from ..tuning.package_members import add_members
from ..tvm_env import import_relax_tvm
from ..tvm_env.compiler import require_compiler
from ..tvm_env.library import is_cut_off
from .watch import Watch

SUFFIX = ".so"
#: Name and shape (an open extent by its name) and dtype of each input of ``main``.
Inputs = Mapping[str, tuple[tuple[int | str, ...], str]]
#: A function beside ``main`` that returns the inputs as JSON; TVM's virtual machine does not tell them.
SIGNATURE = "roller_tvm_inputs"
#: An attribute of what `pipeline.build` returns for cuda: the kernels' source, which `run --emulate` takes.
KERNELS = "roller_tvm_kernels"
#: An attribute of what `pipeline.build` returns: its `ModelReport`, which `save_model` keeps in the file.
REPORT = "roller_tvm_report"
REMEDY = "give what 'roller-tvm compile' wrote on the Relax line (.so)"


def check_output(path: str | os.PathLike[str]) -> Path:
    """A path that a model can be written to, found out before it is built."""
    path = Path(path)
    if path.suffix != SUFFIX:
        raise UsageError(f"'{path}' does not end in .so", "--output", "a model of the Relax line is one library: m.so")
    if not path.parent.is_dir():
        raise BadInput("no such folder", str(path.parent), f"mkdir -p {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise BadInput("the folder cannot be written to", str(path.parent), "give another --output")
    if path.is_dir():
        raise BadInput("is a folder", str(path), "give another --output")
    require_compiler(str(path))
    return path


def with_signature(mod: Any, inputs: Inputs) -> Any:
    """The module with a function that tells its inputs to whoever loads what is built from it.

    Examples
    --------
    >>> built = tvm.compile(with_signature(mod, {"x": ((1, 3), "float32")}), target)  # doctest: +SKIP
    """
    from tvm import relax

    text = json.dumps({name: [list(shape), dtype] for name, (shape, dtype) in inputs.items()})
    builder = relax.BlockBuilder(mod)
    with builder.function(SIGNATURE, []):
        builder.emit_func_output(relax.const(np.frombuffer(text.encode(), "uint8")))
    return builder.get()


def save_model(executable: Any, path: str | os.PathLike[str]) -> Path:
    """Write what ``tvm.compile`` returned; the file is there whole or not at all.

    Examples
    --------
    >>> save_model(tvm.compile(mod, target), "model.so")  # doctest: +SKIP
    """
    path = check_output(path)
    try:
        with tempfile.TemporaryDirectory(prefix=".roller-tvm-", dir=path.parent) as folder:
            made = Path(folder, path.name)
            executable.export_library(str(made))
            for kept in (getattr(executable, KERNELS, None), getattr(executable, REPORT, None)):
                if kept is not None:
                    add_members(made, kept.members())
            os.replace(made, path)
    except OSError as error:
        raise _cannot_write(error, path) from error
    except RuntimeError as error:  # the C++ compiler that links the library
        if "No space left" in str(error):
            raise _cannot_write(OSError(errno.ENOSPC, ""), path) from error
        raise ToolchainError(
            f"the library cannot be linked: {_cause(error)}",
            str(path),
            "run 'roller-tvm doctor': a C++ compiler is needed",
        ) from error
    return path


def _cannot_write(error: OSError, path: Path) -> RollerError:
    full, other = "no space left to write the model; nothing was written", "give another --output"
    return cannot_write(error, path, full, f"free some space, or {other}", other)


def _cause(error: Exception) -> str:
    """The line of a compiler's message that tells what is wrong; TVM's errors end with it, behind a trace."""
    return next((line.strip() for line in str(error).splitlines() if "error:" in line), last_line(error))


class LoadedModel:
    """A built model, ready to run on a device.

    Attributes
    ----------
    inputs : dict
        Name -> (shape, dtype), in the order of the arguments; an open extent is the name of its variable.
    kind : str
        "cpu", "cuda", ...
    report : ModelReport
        The schedules of its kernels.

    Examples
    --------
    >>> model = LoadedModel("model.so")  # doctest: +SKIP
    >>> outputs = model.run({"x": array})  # doctest: +SKIP
    """

    inputs: dict[str, tuple[tuple[int | str, ...], str]]
    report: ModelReport

    def __init__(self, path: str | os.PathLike[str], device: str = "") -> None:
        path = Path(path)
        if not path.is_file():
            raise BadInput("is a folder" if path.is_dir() else "no such file", str(path), REMEDY)
        tvm = import_relax_tvm("running a model")
        if path.suffix != SUFFIX:
            raise BadInput("is not a model of the Relax line", str(path), REMEDY)
        if is_cut_off(path):
            raise BadInput("is half of a library", str(path), "compile the model again")
        try:
            library = tvm.runtime.load_module(str(path))
            self._open(library, library, device, str(path))
        except (RuntimeError, AttributeError, OSError, ValueError, TypeError) as error:
            if lacking := re.search(r"load_from_bytes\.(\w+)", str(error)):  # TVM has no runtime for it here
                raise _no_device(lacking[1], str(path)) from error
            raise BadInput(f"is not a model of the Relax line: {_cause(error)}", str(path), REMEDY) from error
        self.report = report_of(path)

    @classmethod
    def of_executable(cls, executable: Any, device: str = "", where: str = "model") -> LoadedModel:
        """Return a model that was built in this process, with its `with_signature`."""
        import_relax_tvm("running a model")
        model = cls.__new__(cls)
        model._open(_copied(executable.jit()), executable.mod, device, where)
        model.report = getattr(executable, REPORT)
        return model

    def _open(self, executable: Any, library: Any, device: str, where: str) -> None:
        import tvm
        from tvm import relax

        self.kind = device or _kind(library)
        try:
            self.device = tvm.device(self.kind, 0)
        except ValueError as error:
            raise BadInput(f"TVM knows no device '{device}'", where, "give cpu or cuda, or leave it out") from error
        if not self.device.exist:
            raise _no_device(self.kind, where)
        # Shapes, and what else the host looks at, stay on the CPU.
        devices = [self.device] if self.kind == "cpu" else [self.device, tvm.cpu()]
        self._new_machine = partial(relax.VirtualMachine, executable, devices)
        self.machine = self._new_machine()
        told = json.loads(self.machine[SIGNATURE]().numpy().tobytes())
        self.inputs = {name: (tuple(shape), dtype) for name, (shape, dtype) in told.items()}
        self._tensor, self._from_dlpack = tvm.runtime.tensor, tvm.runtime.from_dlpack

    def _arguments(self, inputs: Mapping[str, Any]) -> list[Any]:
        return [self._argument(inputs[name]) for name in self.inputs]

    def _argument(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack_device__"):
            if int(value.__dlpack_device__()[0]) == int(self.device.dlpack_device_type()):
                return self._from_dlpack(value)
            value = value.cpu() if hasattr(value, "cpu") else value
        return self._tensor(np.asarray(value, order="C"), self.device)

    def run(self, inputs: Mapping[str, Any], on_device: bool = False) -> list[Any]:
        """Return the outputs as numpy arrays, or (`on_device`) as tensors of the device with ``__dlpack__``."""
        made = self.machine["main"](*self._arguments(inputs))
        self.device.sync()
        return list(tensors_of(made) if on_device else arrays_of(made))

    def times(self, inputs: Mapping[str, Any], number: int, repeat: int) -> list[float]:
        """Seconds a run, `repeat` times the mean of `number` runs."""
        clock = self.machine.time_evaluator("main", self.device, number=number, repeat=repeat)
        return [float(t) for t in clock(*self._arguments(inputs)).results]

    def kernel_times(self, inputs: Mapping[str, Any], repeat: int) -> list[KernelTime]:
        """Return the time of each kernel, over `repeat` runs observed call by call."""
        arguments, watch = self._arguments(inputs), Watch(self.device)
        machine = self._new_machine()
        machine["main"](*arguments)
        machine.set_instrument(watch)
        runs = []
        for _ in range(repeat):
            machine["main"](*arguments)
            runs.append(watch.taken())
        return kernel_times(runs)


def _copied(library: Any) -> Any:
    """Return a copy of an executable that shares its kernels.

    A virtual machine adds empty memory scopes to the executable that it runs, of which each constant becomes a line of
    warning, in saving and in every loading of the file.
    """
    import tvm

    with tempfile.TemporaryDirectory(prefix="roller-tvm-") as folder:
        file = str(Path(folder, "executable"))
        library.write_to_file(file, library.kind)
        copy = tvm.get_global_func(f"ffi.Module.load_from_file.{library.kind}")(file)
    for imported in library.imports:
        copy.import_module(imported)
    return copy


def _no_device(kind: str, where: str) -> BadInput:
    remedy = "run it where there is one, on this CPU with --emulate, or compile it with --target llvm"
    return BadInput(f"needs a {kind} device, there is none here", where, remedy)


def tensors_of(value: Any) -> Iterator[Any]:
    """Yield the tensors of a result, which may be a tuple of tuples; shapes and numbers as arrays."""
    if hasattr(value, "numpy"):
        yield value
    elif isinstance(value, (tuple, list)) or type(value).__name__ == "Array":
        for one in value:
            yield from tensors_of(one)
    else:
        yield from arrays_of(value)


def arrays_of(value: Any) -> Iterator[Any]:
    """The tensors of a result, which may be a tuple of tuples; shapes and numbers as arrays."""
    import tvm_ffi

    if hasattr(value, "numpy"):
        yield value.numpy()
        return
    if isinstance(value, (int, float, tvm_ffi.Shape)):
        yield np.asarray(value if isinstance(value, (int, float)) else [int(e) for e in value])
        return
    for one in value:
        yield from arrays_of(one)


def _kind(library: Any) -> str:
    """The device that a library's kernels need."""
    todo = [library]
    while todo:
        module = todo.pop()
        if module.kind in ("cuda", "rocm", "opencl", "vulkan", "metal"):
            return str(module.kind)
        todo.extend(module.imports)
    return "cpu"
