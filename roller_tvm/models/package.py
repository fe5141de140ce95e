"""Built models on disk and in memory, the same on both TVM lines. Imports no TVM."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import tarfile
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..errors import BadInput, RollerError, ToolchainError, UsageError, cannot_write, last_line
from ..folders import beside, check_space, full_place
from ..forks import deadly
from ..package_members import add_members, check_seal, seal
from ..tuning.kernel_times import KernelTime
from ..tuning.model_report import ModelReport, report_of
from ..tvm_env.compiler import require_compiler
from ..tvm_env.library import is_cut_off
from .arguments import Signature

#: Attributes of a built model: the source of its CUDA kernels, for `run --emulate`, and its `ModelReport`.
KERNELS, REPORT = "roller_tvm_kernels", "roller_tvm_report"
SUFFIX = ".so"
#: Errors that TVM raises for a file that is no model.
UNREADABLE = (RuntimeError, AttributeError, OSError, ValueError, TypeError, EOFError, tarfile.TarError)
DEVICES = ("cuda", "rocm", "opencl", "vulkan", "metal")


@dataclass(frozen=True)
class Format:
    """A line's files of built models."""

    #: Name of the line, for messages.
    line: str
    suffixes: tuple[str, ...]
    #: Words for another ending, behind the path, and the remedy.
    wrong_suffix: str
    suffix_remedy: str
    #: The program that writes such files, for the remedy.
    wrote: str

    def check_output(self, path: str | os.PathLike[str]) -> Path:
        """Return a path that a model can be written to; checked before the model is built."""
        path = Path(path)
        if path.suffix not in self.suffixes:
            raise UsageError(f"'{path}' {self.wrong_suffix}", "--output", self.suffix_remedy)
        if not path.parent.is_dir():
            raise BadInput("no such folder", str(path.parent), f"mkdir -p {path.parent}")
        if not os.access(path.parent, os.W_OK):
            raise BadInput("the folder cannot be written to", str(path.parent), "give another --output")
        if path.is_dir():
            raise BadInput("is a folder", str(path), "give another --output")
        require_compiler(str(path))
        return path

    def write(self, built: Any, path: str | os.PathLike[str], export: Callable[[Path], None]) -> Path:
        """Write a built model, whole or not at all; `export` writes what the line's own runtime reads."""
        path = self.check_output(path)
        try:
            with beside(path) as made:
                _check_room(lambda: export(made))
                export(made)
                for kept in (getattr(built, KERNELS, None), getattr(built, REPORT, None)):
                    if kept is not None:
                        add_members(made, kept.members())
                seal(made)
        except OSError as error:
            raise _not_written(error, path) from error
        except RuntimeError as error:  # the C++ compiler that links the library
            if "No space left" in str(error):
                raise _not_written(OSError(errno.ENOSPC, ""), path) from error
            what = f"the library cannot be linked: {cause_of(error)}"
            raise ToolchainError(what, str(path), "run 'roller-tvm doctor': a C++ compiler is needed") from error
        return path

    def refused(self, path: Path, error: BaseException | None = None) -> BadInput:
        """Return the error for a file that is no model of this line."""
        told = f": {cause_of(error)}" if error is not None else ""
        return BadInput(f"is not a model of the {self.line} line{told}", str(path), self.remedy)

    @property
    def remedy(self) -> str:
        """The file to give instead."""
        return f"give what {self.wrote} wrote on the {self.line} line ({' or '.join(self.suffixes)})"


def _check_room(export: Callable[[], None]) -> None:
    """Raise ``DiskFull`` if the temporary folder has no room for the objects of a model, where LLVM ends the process.

    They are smaller than this process, which holds their constants; if there is less room, a fork tries first.
    """
    check_space()
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if shutil.disk_usage(tempfile.gettempdir()).free < held and (ended := deadly(export)):
        raise full_place(OSError(errno.ENOSPC, f"{ended} when the model is written"), Path(tempfile.gettempdir()))


def _not_written(error: OSError, path: Path) -> RollerError:
    full, other = "no space left to write the model; nothing was written", "give another --output"
    return cannot_write(error, path, full, f"free some space, or {other}", other)


def cause_of(error: BaseException) -> str:
    """Return the line of a message that tells the fault: a compiler's first error, else the last line."""
    return next((line.strip() for line in str(error).splitlines() if re.search("error: .", line)), last_line(error))


def kind_of_kernels(library: Any, kind: Callable[[Any], str], imports: Callable[[Any], Any]) -> str:
    """Return the kind of device that the kernels of a library and its imports need."""
    todo = [library]
    while todo:
        module = todo.pop()
        if (found := str(kind(module))) in DEVICES:
            return found
        todo.extend(imports(module))
    return "cpu"


def no_device(kind: str, where: str) -> BadInput:
    """Return the error for a device that is not here."""
    remedy = "run it where there is one, on this CPU with --emulate, or compile it with --target llvm"
    return BadInput(f"needs a {kind} device, there is none here", where, remedy)


class LoadedModel(ABC):
    """A built model, ready to run on a device.

    Examples
    --------
    >>> model = roller_tvm.load("model.so")
    >>> outputs = model.run({"x": x})
    """

    FORMAT: ClassVar[Format]
    #: Name -> (shape, dtype), in the order of the arguments; an open extent is the name of its variable.
    inputs: Signature
    #: The schedules of its kernels.
    report: ModelReport
    #: "cpu", "cuda", ..., and TVM's device of that kind.
    kind: str
    device: Any

    def __init__(self, path: str | os.PathLike[str], device: str = "") -> None:
        path = Path(path)
        if not path.is_file():
            raise BadInput("is a folder" if path.is_dir() else "no such file", str(path), self.FORMAT.remedy)
        tvm = self.import_tvm()
        packed = len(self.FORMAT.suffixes) > 1 and tarfile.is_tarfile(path)
        if not packed and path.suffix != SUFFIX:
            raise self.FORMAT.refused(path)
        if not packed and is_cut_off(path):
            raise BadInput("is half of a library", str(path), "compile the model again")
        check_seal(path)
        try:
            self._open(tvm, path, packed, device)
        except UNREADABLE as error:
            if lacking := re.search(r"load_from_bytes\.(\w+)", str(error)):  # TVM has no runtime for it here
                raise no_device(lacking[1], str(path)) from error
            raise self.FORMAT.refused(path, error) from error
        self.report = report_of(path)

    @classmethod
    def of_built(cls, built: Any, device: str = "", where: str = "model") -> Any:
        """Return a model that was built in this process."""
        model = cls.__new__(cls)
        model._take(cls.import_tvm(), built, device, where)
        model.report = getattr(built, REPORT)
        return model

    def _choose(self, tvm: Any, kind: str, device: str, where: str) -> None:
        """Choose the device: the requested one, or that of the kernels, which is `kind`."""
        self.kind = device or kind
        try:
            self.device = tvm.device(self.kind, 0)
        except ValueError as error:
            raise BadInput(f"TVM knows no device '{device}'", where, "give cpu or cuda, or leave it out") from error
        if not self.device.exist:
            raise no_device(self.kind, where)

    @staticmethod
    @abstractmethod
    def import_tvm() -> Any:
        """Import the line's TVM."""

    @abstractmethod
    def _open(self, tvm: Any, path: Path, packed: bool, device: str) -> None:
        """Load a library, or (`packed`) a package."""

    @abstractmethod
    def _take(self, tvm: Any, built: Any, device: str, where: str) -> None:
        """Take what was built in this process."""

    @abstractmethod
    def run(self, inputs: Mapping[str, Any], on_device: bool = False) -> list[Any]:
        """Return the outputs as numpy arrays, or (`on_device`) as tensors of the device with ``__dlpack__``."""

    @abstractmethod
    def arguments(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Return inputs as `call` takes them."""

    @abstractmethod
    def call(self, *arguments: Any) -> Any:
        """Run once, to the end; the result is whole whatever runs later."""

    @abstractmethod
    def outputs(self, made: Any, on_device: bool = False) -> list[Any]:
        """Return a result of `call` as `run` does."""

    @abstractmethod
    def times(self, inputs: Mapping[str, Any], number: int, repeat: int) -> list[float]:
        """Return `repeat` times in seconds, each the mean of `number` runs."""

    @abstractmethod
    def kernel_times(self, inputs: Mapping[str, Any], repeat: int) -> list[KernelTime]:
        """Return the time of each kernel, over `repeat` runs observed call by call."""
