"""Run kernels: device memory that records writes, launches, and faults in words."""

from __future__ import annotations

import ctypes
import math
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roller_check.build import kernel_library, line_of, load_runtime
from roller_check.faults import KINDS, Error, KernelFault, place, words
from roller_tvm.codegen.cuda_text import CudaSource, Kernel, dtype_bytes
from roller_tvm.codegen.errors import NotEmulated
from roller_tvm.errors import RollerError, UsageError, must_be

# One launch at a time in a process: threads of a block and their memory are the emulator's globals.
_LOCK = threading.RLock()
_MOST_THREADS = 1024  # of a block, on every NVIDIA GPU
STATIC_SHARED_BYTES = 48 * 1024  # what nvcc accepts of __shared__ arrays


class _Limits(ctypes.Structure):
    _fields_ = [
        ("seconds", ctypes.c_double), ("shared_bytes", ctypes.c_uint), ("allow_uninitialised", ctypes.c_int),
        ("allow_races", ctypes.c_int), ("unchecked", ctypes.c_int),
    ]  # fmt: skip


def _runtime() -> ctypes.CDLL:
    library = load_runtime()
    library.emu_allocate.restype = ctypes.c_void_p
    library.emu_allocate.argtypes = [ctypes.c_ulonglong, ctypes.c_int]
    library.emu_release.argtypes = [ctypes.c_void_p]
    library.emu_mark.argtypes = [ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_int]
    library.emu_unwritten.restype = ctypes.c_longlong
    library.emu_unwritten.argtypes = [ctypes.c_void_p, ctypes.c_ulonglong, ctypes.POINTER(ctypes.c_ulonglong)]
    return library


class DeviceArray:
    """Memory of the emulated device, between guards; to read an unwritten element is a fault.

    Parameters
    ----------
    dtype : str
        Name of a numpy type, or 'bfloat16' (uint16 in numpy).
    name : str
        Name in reports.
    values : array, optional
        Initial values. Default: all elements are unwritten.
    """

    _names: dict[int, str] = {}
    _next = 0

    def __init__(self, shape: Sequence[int], dtype: Any, name: str = "", values: Any = None) -> None:
        self.shape = tuple(int(e) for e in shape)
        self.dtype = str(dtype)
        self.name = name or "a buffer"
        self.nbytes = math.prod(self.shape) * dtype_bytes(self.dtype)
        with _LOCK:
            library = _runtime()
            number = DeviceArray._next
            DeviceArray._next += 1
            address = library.emu_allocate(self.nbytes, number)
            if not address:
                raise RollerError(f"{self.nbytes} bytes do not fit the emulated device", where=self.name)
            DeviceArray._names[number] = self.name
            self.address = int(address)
            self._free = weakref.finalize(self, _release, self.address, number)
            if values is not None:
                array = np.asarray(values)
                if self.dtype == "bfloat16" and array.dtype.itemsize == 2:  # of ml_dtypes, or its bits
                    array = array.view(np.uint16)
                self._view()[...] = array.reshape(self.shape).astype(self._numpy(), copy=False)
                library.emu_mark(self.address, self.nbytes, 1)

    def _numpy(self) -> np.dtype[Any]:
        return np.dtype(np.uint16 if self.dtype == "bfloat16" else self.dtype)

    def _view(self) -> np.ndarray[Any, Any]:
        memory = (ctypes.c_char * self.nbytes).from_address(self.address)
        return np.frombuffer(memoryview(memory), self._numpy()).reshape(self.shape)

    def numpy(self, partly: bool = False) -> np.ndarray[Any, Any]:
        """Return a copy of the contents.

        Parameters
        ----------
        partly : bool
            True to allow unwritten elements; all their bits are set (NaN in floating point).

        Raises
        ------
        KernelFault
            Kind 'unwritten': some element was never written.
        """
        with _LOCK:
            count = ctypes.c_ulonglong()
            first = _runtime().emu_unwritten(self.address, self.nbytes, ctypes.byref(count))
            if first >= 0 and not partly:
                size = dtype_bytes(self.dtype)
                raise KernelFault(
                    f"{-(-count.value // size)} of {self.nbytes // size} elements were never written, the first at "
                    f"{place(first // size, self.shape)}", where=self.name, kind="unwritten", buffer=self.name,
                )  # fmt: skip
            return self._view().copy()


    def written(self) -> np.ndarray[Any, Any]:
        """Return an array of bool: True for written elements."""
        with _LOCK:
            found = np.zeros(self.nbytes, np.uint8)
            _runtime().emu_written(ctypes.c_void_p(self.address), ctypes.c_ulonglong(self.nbytes),
                                   found.ctypes.data_as(ctypes.c_void_p))  # fmt: skip
            return found.reshape(*self.shape, dtype_bytes(self.dtype)).all(-1)


def _release(address: int, number: int) -> None:
    with _LOCK:
        _runtime().emu_release(address)
        DeviceArray._names.pop(number, None)


@dataclass(frozen=True)
class Program:
    """Kernels of a source, compiled for this CPU."""

    source: CudaSource
    library: Path
    checked: bool = True  # True if accesses to memory are checked

    def run(
        self, kernel: str, grid: Sequence[int] | int, block: Sequence[int] | int, args: Sequence[Any],
        dynamic_shared: int = 0, shared_limit: int = 0, uninitialised: str = "fault", races: str = "fault",
        timeout_s: float = 600.0, blocks: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        """Run a kernel; arrays are changed in place.

        Parameters
        ----------
        args : sequence
            An array or `DeviceArray` for each pointer, a number for each other parameter.
        dynamic_shared : int
            Bytes of dynamic shared memory.
        shared_limit : int
            Most bytes of shared memory per block. Default: 48 KiB plus `dynamic_shared`.
        uninitialised, races : str
            'fault' or 'allow'.
        blocks : sequence of int, optional
            Numbers of the blocks to run, x fastest. Default: all.

        Raises
        ------
        KernelFault
            The kernel misbehaved.
        UsageError
            The arguments do not fit the kernel.

        Examples
        --------
        >>> program = compile_source('extern "C" __global__ void f(float* A) { A[threadIdx.x] *= 2.0f; }')
        >>> a = np.arange(4, dtype="float32")
        >>> program.run("f", 1, 4, [a])
        >>> a.tolist()
        [0.0, 2.0, 4.0, 6.0]
        """
        found = self.source.kernel(kernel)
        grid_extents, threads = _extents("grid", grid), _extents("block", block)
        _check_launch(found, threads)
        for name, value in (("uninitialised", uninitialised), ("races", races)):
            if value not in ("fault", "allow"):
                raise UsageError(must_be(name, "'fault' or 'allow'", value))
        limit = shared_limit or STATIC_SHARED_BYTES + dynamic_shared
        limits = _Limits(timeout_s, limit, int(uninitialised == "allow"), int(races == "allow"), int(not self.checked))
        if len(args) != len(found.parameters):
            raise UsageError(f"{len(args)} arguments for {len(found.parameters)} parameters", where=str(found))
        with _LOCK:
            self._run(found, grid_extents, threads, args, dynamic_shared, limits, blocks)

    def _run(
        self, kernel: Kernel, grid: tuple[int, ...], threads: tuple[int, ...], args: Sequence[Any],
        dynamic_shared: int, limits: _Limits, blocks: Sequence[int] | None,
    ) -> None:  # fmt: skip
        runtime = _runtime()
        values: list[Any] = []
        lent, named = [], {}
        for parameter, given in zip(kernel.parameters, args, strict=True):
            if not parameter.pointer:
                if parameter.dtype in ("", "void", "bfloat16"):
                    raise NotEmulated(f"parameter {parameter} is passed by value", where=kernel.name)
                number = np.asarray([given], parameter.dtype)
                values.append(ctypes.create_string_buffer(number.tobytes()))
                continue
            device = given
            if not isinstance(given, DeviceArray):
                array = np.asarray(given)
                device = DeviceArray(array.shape, array.dtype, parameter.name, array)
                lent.append((device, array))
            if parameter.dtype not in ("", "void") and dtype_bytes(device.dtype) != dtype_bytes(parameter.dtype):
                raise UsageError(f"an array of {device.dtype} does not fit {parameter}", where=kernel.name)
            named[device.name] = device
            values.append(ctypes.c_void_p(device.address))
        pointers = (ctypes.c_void_p * max(1, len(values)))(*(ctypes.addressof(v) for v in values))
        library = ctypes.CDLL(str(self.library))
        error = Error()
        entry = ctypes.cast(getattr(library, f"emu_call_{kernel.name}"), ctypes.c_void_p)
        dims = ctypes.c_uint * 3
        chosen = None if blocks is None else (ctypes.c_uint * len(blocks))(*blocks)
        rc = runtime.emu_launch(
            entry, pointers, dims(*grid), dims(*threads), chosen, len(blocks or ()), dynamic_shared,
            ctypes.byref(limits), ctypes.byref(error),
        )  # fmt: skip
        if rc < 0:
            raise RollerError("no memory for the threads of a block", where=kernel.name)
        if rc:
            raise self._fault(error, kernel, grid, named)
        if not self.checked:  # nothing says what was written
            for device in named.values():
                runtime.emu_mark(device.address, device.nbytes, 1)
        for device, array in lent:
            np.copyto(array, device.numpy(partly=True).view(array.dtype).reshape(array.shape))

    def _fault(
        self, error: Error, kernel: Kernel, grid: tuple[int, ...], named: Mapping[str, DeviceArray]
    ) -> KernelFault:
        line = error.line or line_of(self.library, error.pc)
        buffer = error.name.decode() if error.space == 2 else DeviceArray._names.get(error.buffer, "")
        device = named.get(buffer) if error.space != 2 else None
        text = words(error, buffer, device.shape if device else (), device.dtype if device else "", grid)
        kind = KINDS[error.kind]
        block, thread = error.block.tuple(), error.thread.tuple()
        what = f"{text} (block {block}, thread {thread})"
        if line:
            what += f"\n  line {line}: {self.source.text.splitlines()[line - 1].strip()[:200]}"
        return KernelFault(
            what, where=kernel.name, kind=kind, kernel=kernel.name, buffer=buffer, block=block, thread=thread, line=line
        )


def compile_source(text: str | CudaSource, checked: bool = True, arch: str = "sm_90") -> Program:
    """Compile CUDA C++ for this CPU; results are kept in the user's cache.

    Parameters
    ----------
    checked : bool
        True to check every access to memory (several times slower).
    arch : str
        Architecture in ``__CUDA_ARCH__``.

    Raises
    ------
    NotEmulated
        The source uses something unknown to the emulator.
    ToolchainError
        No C++ compiler works.
    """
    source = text if isinstance(text, CudaSource) else CudaSource(text)
    return Program(source, kernel_library(source, checked, arch), checked)


def _extents(name: str, given: Sequence[int] | int) -> tuple[int, int, int]:
    listed = [given] if isinstance(given, int) else list(given)
    if not 1 <= len(listed) <= 3 or any(int(e) < 1 for e in listed):
        raise UsageError(must_be(name, "one to three numbers >= 1", given))
    x, y, z = (*(int(e) for e in listed), 1, 1)[:3]
    return x, y, z


def _check_launch(kernel: Kernel, threads: tuple[int, ...]) -> None:
    count = math.prod(threads)
    most = kernel.most_threads or _MOST_THREADS
    if count > most:
        limit = "its __launch_bounds__" if kernel.most_threads else "a GPU"
        text = f"launched with {count} threads a block, {limit} allows {most}"
        raise KernelFault(text, where=kernel.name, kind="launch", kernel=kernel.name)
