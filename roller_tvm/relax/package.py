"""Built models on disk: one shared library, which any TVM of the Relax line loads, and which says its inputs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadInput
from ..folders import work_folder
from ..models import package
from ..models.arguments import Signature
from ..models.package import SUFFIX, kind_of_kernels
from ..models.size_checks import failing
from ..tuning.kernel_times import KernelTime, kernel_times
from ..tvm_env import import_relax_tvm
from ..tvm_env.compiler import find_compiler
from .cubins import compiled_here
from .watch import Watch

#: A function beside ``main`` that returns the inputs as JSON; TVM's virtual machine does not tell them.
SIGNATURE = "roller_tvm_inputs"
#: Stands among them for the checks of the sizes; no input has this name.
SIZES = ""
FORMAT = package.Format(
    "Relax", (SUFFIX,), "does not end in .so", "a model of the Relax line is one library: m.so", "'roller-tvm compile'"
)
REMEDY = FORMAT.remedy


def with_signature(mod: Any, inputs: Signature) -> Any:
    """Return the module with a function that tells its inputs to whoever loads the built model.

    Examples
    --------
    >>> built = tvm.compile(with_signature(mod, {"x": ((1, 3), "float32")}), target)
    """
    from tvm import relax

    from .size_checks import checks_of

    told: dict[str, Any] = {name: [list(shape), dtype] for name, (shape, dtype) in inputs.items()}
    told[SIZES] = checks_of(mod["main"])
    text = json.dumps(told)
    builder = relax.BlockBuilder(mod)
    with builder.function(SIGNATURE, []):
        builder.emit_func_output(relax.const(np.frombuffer(text.encode(), "uint8")))
    return builder.get()


def told_inputs(machine: Any) -> tuple[dict[str, tuple[tuple[int | str, ...], str]], list[str]]:
    """Return the inputs that a virtual machine's model tells by its `with_signature`, and the checks of its sizes."""
    told = json.loads(machine[SIGNATURE]().numpy().tobytes())
    checks = told.pop(SIZES, [])
    return {name: (tuple(shape), dtype) for name, (shape, dtype) in told.items()}, checks


def save_model(executable: Any, path: str | os.PathLike[str], more: Sequence[str] = ()) -> Path:
    """Write what ``tvm.compile`` returned; the file is there whole or not at all.

    Parameters
    ----------
    more : sequence of str
        Further files to link: sources in C++, objects.

    Examples
    --------
    >>> save_model(tvm.compile(mod, target), "other.so").name
    'other.so'
    """
    options: dict[str, Any] = {}
    if os.environ.get("CXX") and (compiler := find_compiler()):  # of another machine perhaps, which TVM does not ask
        from tvm.support import cc

        options["fcompile"] = cc.cross_compiler(compiler, get_target_triple=cc.get_target_by_dump_machine(compiler))

    def export(made: Path) -> None:
        executable.export_library(str(made), addons=list(more), **options)

    return FORMAT.write(executable, path, export)


class LoadedModel(package.LoadedModel):
    """A built model of the Relax line, run by TVM's virtual machine; `package.LoadedModel` has the attributes."""

    FORMAT = FORMAT

    @staticmethod
    def import_tvm() -> Any:
        return import_relax_tvm("running a model")

    def _open(self, tvm: Any, path: Path, packed: bool, device: str) -> None:
        with compiled_here(tvm):
            library = tvm.runtime.load_module(str(path))
        self._attach(tvm, library, library, device, str(path))

    def _take(self, tvm: Any, built: Any, device: str, where: str) -> None:
        executable = built.jit()
        # A virtual machine changes its executable: that which is saved stays as it was built.
        self._attach(tvm, _copied(executable) if executable is built.mod else executable, built.mod, device, where)

    def _attach(self, tvm: Any, executable: Any, library: Any, device: str, where: str) -> None:
        from tvm.runtime.vm import VirtualMachine  # there without a compiler too

        kind = kind_of_kernels(library, lambda module: module.kind, lambda module: module.imports)
        self._choose(tvm, kind, device, where)
        # Shapes, and what else the host looks at, stay on the CPU.
        devices = [self.device] if self.kind == "cpu" else [self.device, tvm.cpu()]
        self.new_machine = partial(VirtualMachine, executable, devices)
        self.machine = self.new_machine()
        self.inputs, self.checks = told_inputs(self.machine)
        self._tensor, self._from_dlpack = tvm.runtime.tensor, tvm.runtime.from_dlpack

    def arguments(self, inputs: Mapping[str, Any]) -> list[Any]:
        return [self._argument(inputs[name]) for name in self.inputs]

    def _argument(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack_device__"):
            if int(value.__dlpack_device__()[0]) == int(self.device.dlpack_device_type()):
                return self._from_dlpack(value)
            value = value.cpu() if hasattr(value, "cpu") else value
        return self._tensor(np.asarray(value, order="C"), self.device)

    def call(self, *arguments: Any) -> Any:
        made = self.machine["main"](*arguments)
        self.device.sync()
        return made

    def run(self, inputs: Mapping[str, Any], on_device: bool = False) -> list[Any]:
        try:
            made = self.call(*self.arguments(inputs))
        except Exception as error:  # the virtual machine's own for a shape that does not fit
            if told := failing(self.checks, inputs, self.inputs):
                raise BadInput(told, "model", "give inputs of sizes within these bounds") from error
            raise
        return self.outputs(made, on_device)

    def outputs(self, made: Any, on_device: bool = False) -> list[Any]:
        return list(tensors_of(made) if on_device else arrays_of(made))

    def times(self, inputs: Mapping[str, Any], number: int, repeat: int) -> list[float]:
        clock = self.machine.time_evaluator("main", self.device, number=number, repeat=repeat)
        return [float(t) for t in clock(*self.arguments(inputs)).results]

    def kernel_times(self, inputs: Mapping[str, Any], repeat: int) -> list[KernelTime]:
        arguments, watch = self.arguments(inputs), Watch(self.device)
        machine = self.new_machine()
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

    with work_folder() as folder:
        file = str(Path(folder, "executable"))
        library.write_to_file(file, library.kind)
        copy = tvm.get_global_func(f"ffi.Module.load_from_file.{library.kind}")(file)
    for imported in library.imports:
        copy.import_module(imported)
    return copy


def tensors_of(value: Any) -> Iterator[Any]:
    """Yield the tensors of a result, which may be a tuple of tuples; shapes and numbers as arrays."""
    import tvm_ffi

    if hasattr(value, "numpy"):
        yield value
    elif isinstance(value, (int, float)):
        yield np.asarray(value)
    elif isinstance(value, tvm_ffi.Shape):
        yield np.asarray([int(e) for e in value])
    else:
        for one in value:
            yield from tensors_of(one)


def arrays_of(value: Any) -> Iterator[Any]:
    """Yield the tensors of a result as numpy arrays."""
    return (tensor.numpy() if hasattr(tensor, "numpy") else tensor for tensor in tensors_of(value))
