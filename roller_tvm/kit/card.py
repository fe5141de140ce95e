"""A card for the kit: memory, modules, launches and events through the CUDA driver, with the standard library alone."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

from roller_tvm.device.cuda_driver import CudaFacts, Driver
from roller_tvm.errors import MeasureError

#: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES. Set if a launch needs dynamic shared memory: without it a block gets
#: 48 KiB, static arrays included.
_DYNAMIC_SHARED = 8
Extents = tuple[int, int, int]


class KitCard(Protocol):
    """The operations that the kit needs of a card; tests provide one that executes kernels on the CPU."""

    facts: CudaFacts

    def free_bytes(self) -> int:
        """Return the bytes of free memory."""

    def alloc(self, size: int) -> int:
        """Allocate `size` bytes and return their address."""

    def free(self, address: int) -> None:
        """Free memory returned by `alloc`."""

    def set(self, address: int, byte: int, size: int) -> None:
        """Fill `size` bytes with one byte value."""

    def write(self, address: int, data: bytes) -> None:
        """Copy bytes to the card."""

    def read(self, address: int, size: int) -> bytes:
        """Copy bytes from the card, after all earlier launches have finished."""

    def load(self, image: bytes) -> Any:
        """Load a cubin and return its module."""

    def unload(self, module: Any) -> None:
        """Unload a module."""

    def launch(
        self, module: Any, kernel: str, grid: Extents, block: Extents, args: Sequence[Any], dynamic_shared: int = 0
    ) -> None:
        """Start a kernel; `args` are ctypes values."""

    def wait(self) -> None:
        """Wait until all launches have finished."""

    def start(self) -> None:
        """Record the start event on the card."""

    def stop(self) -> float:
        """Return the microseconds on the card since `start`, after all launches have finished."""


class DeviceCard:
    """A `KitCard` on the CUDA driver; one thread, one context.

    Parameters
    ----------
    driver : Driver
    ordinal : int
        Number of the card in the driver's order.
    """

    def __init__(self, driver: Driver, ordinal: int) -> None:
        self.facts = driver.facts(ordinal)
        self._call = driver.call
        self._device = driver.device(ordinal)
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._call("cuCtxSetCurrent", context)
        self._events = [ctypes.c_void_p(), ctypes.c_void_p()]
        for event in self._events:
            self._call("cuEventCreate", ctypes.byref(event), 0)
        self._functions: dict[tuple[int, str], ctypes.c_void_p] = {}
        self._asked: dict[tuple[int, str], int] = {}

    def free_bytes(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def alloc(self, size: int) -> int:
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def set(self, address: int, byte: int, size: int) -> None:
        self._call("cuMemsetD8_v2", ctypes.c_uint64(address), ctypes.c_ubyte(byte), ctypes.c_size_t(size))

    def write(self, address: int, data: bytes) -> None:
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))

    def read(self, address: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self._call("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return buffer.raw

    def load(self, image: bytes) -> ctypes.c_void_p:
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), image)
        return module

    def unload(self, module: ctypes.c_void_p) -> None:
        for key in [k for k in self._functions if k[0] == module.value]:
            del self._functions[key]
            self._asked.pop(key, None)
        self._call("cuModuleUnload", module)

    def launch(
        self, module: ctypes.c_void_p, kernel: str, grid: Extents, block: Extents, args: Sequence[Any],
        dynamic_shared: int = 0,
    ) -> None:  # fmt: skip
        function = self._function(module, kernel, dynamic_shared)
        pointers = (ctypes.c_void_p * max(1, len(args)))(*(ctypes.addressof(a) for a in args))
        self._call("cuLaunchKernel", function, *grid, *block, dynamic_shared, None, pointers, None)

    def wait(self) -> None:
        self._call("cuCtxSynchronize")

    def start(self) -> None:
        self._call("cuEventRecord", self._events[0], None)

    def stop(self) -> float:
        begin, end = self._events
        self._call("cuEventRecord", end, None)
        self._call("cuEventSynchronize", end)
        milliseconds = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(milliseconds), begin, end)
        return milliseconds.value * 1e3

    def _function(self, module: ctypes.c_void_p, kernel: str, dynamic_shared: int) -> ctypes.c_void_p:
        key = (module.value or 0, kernel)
        if key not in self._functions:
            function = ctypes.c_void_p()
            self._call("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
            self._functions[key] = function
        if dynamic_shared > self._asked.get(key, 0):
            most = self.facts.shared_per_block_optin
            if dynamic_shared > most:
                raise MeasureError(f"needs {dynamic_shared} B of shared memory, a block here has {most}", kernel)
            self._call("cuFuncSetAttribute", self._functions[key], _DYNAMIC_SHARED, dynamic_shared)
            self._asked[key] = dynamic_shared
        return self._functions[key]
