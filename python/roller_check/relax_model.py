"""A model built for CUDA, run by TVM's virtual machine on the CPU: its kernels are executed by the emulator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from roller_check import kept
from roller_tvm.errors import BadInput
from roller_tvm.models import last_line
from roller_tvm.relax.package import REMEDY, arrays_of, told_inputs
from roller_tvm.tvm_env import import_relax_tvm

_LOADER = "ffi.Module.load_from_bytes.cuda"
_BUILTIN = "vm.builtin."
_NEW = f"{_BUILTIN}alloc_tensor"  # what makes a tensor that nobody has written


class EmulatedModel(kept.EmulatedModel):
    """A model built for CUDA, run by TVM's virtual machine."""

    def _load(self, path: Path) -> dict[str, tuple[tuple[int | str, ...], str]]:
        tvm = import_relax_tvm("running a model")
        from tvm import relax
        from tvm.runtime.vm import VMInstrumentReturnKind

        try:
            with _cuda_loads(tvm):
                library = tvm.runtime.load_module(str(path))
            self.machine = relax.VirtualMachine(library, tvm.cpu())
            found, _ = told_inputs(self.machine)
        except (RuntimeError, AttributeError, OSError, ValueError, TypeError) as error:
            raise BadInput(f"is not a model of the Relax line: {last_line(error)}", str(path), REMEDY) from error
        self._tensor, self._new = tvm.runtime.tensor, set[int]()
        self._raised: list[Exception] = []
        ran, go_on = int(VMInstrumentReturnKind.SKIP_RUN), int(VMInstrumentReturnKind.NO_OP)

        def instrument(_function: Any, name: str, before: bool, result: Any, *arguments: Any) -> int:
            if name == _NEW and not before:
                self._new.add(_address(result))
            if before and name not in self._emulation and not name.startswith(_BUILTIN):  # it may write any of them
                self._new -= {_address(a) for a in arguments if hasattr(a, "data_ptr")}
            if not before or name not in self._emulation:
                return go_on
            try:
                self._call(name, arguments)
            except Exception as error:  # through TVM it would lose its type
                self._raised.append(error)
                raise
            return ran

        self.machine.set_instrument(instrument)
        return found

    def _outputs(self, inputs: Mapping[str, Any]) -> list[Any]:
        self._raised.clear()
        given = [self._tensor(np.asarray(inputs[name], order="C")) for name in self.inputs]
        try:
            return list(arrays_of(self.machine["main"](*given)))
        except Exception:  # of TVM, in place of the one that a kernel raised
            if self._raised:
                raise self._raised[0] from None
            raise

    def _call(self, name: str, arguments: tuple[Any, ...]) -> None:
        """A function called as the virtual machine would call it: results are the last of its arguments."""
        values = [_array(a) if hasattr(a, "shape") else a for a in arguments]
        places = [_address(a) if hasattr(a, "shape") else 0 for a in arguments]
        fresh = {n for n, place in enumerate(places) if place in self._new}
        before = {n: v.copy() for n, v in enumerate(values) if isinstance(v, np.ndarray) and n not in fresh}
        self._emulation.call(name, values, fresh)
        for n, value in enumerate(values):
            if isinstance(value, np.ndarray) and (n in fresh or value.tobytes() != before[n].tobytes()):
                arguments[n].copyfrom(value)
        self._new -= set(places)


def _array(tensor: Any) -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = tensor.numpy()
    return values if values.flags.writeable else values.copy()


def _address(tensor: Any) -> int:
    return int(tensor.data_ptr())


@contextlib.contextmanager
def _cuda_loads(tvm: Any) -> Iterator[None]:
    """Make a library with CUDA kernels loadable while this is open, if TVM has no CUDA runtime; nothing calls them."""
    if tvm.get_global_func(_LOADER, allow_missing=True) is not None:
        yield
        return
    from tvm_ffi.registry import remove_global_func

    empty = tvm.get_global_func("runtime.CSourceModuleCreate")
    tvm.register_global_func(_LOADER, lambda _data: empty("", "c", [], []))
    try:
        yield
    finally:  # what runs without emulation needs the device
        remove_global_func(_LOADER)


__all__ = ["EmulatedModel"]
