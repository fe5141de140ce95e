"""The CUDA driver through ctypes: query a card, launch and time kernels. Imports no TVM.

Not yet run on a card: the calls follow `cuda.h` of CUDA 12.9 and 13.0, and are tested with a library of the driver's
function names.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from roller_tvm.errors import MeasureError, ProfileError

LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
WHERE = "CUDA driver"
#: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES. Set if a launch needs dynamic shared memory: without it a block gets
#: 48 KiB, static arrays included.
_DYNAMIC_SHARED = 8


def _fact(attribute: int, optional: bool = False) -> Any:
    """Return the field of a CUdevice_attribute; 0 if it is optional and the driver is too old for it, or hides it."""
    return field(metadata={"attribute": attribute, "optional": optional})


@dataclass(frozen=True)
class CudaFacts:
    """A driver's facts about a card, in the driver's units; the comments are names of attributes in cuda.h."""

    ordinal: int
    name: str
    driver: int
    memory_bytes: int
    major: int = _fact(75)  # COMPUTE_CAPABILITY_MAJOR
    minor: int = _fact(76)  # COMPUTE_CAPABILITY_MINOR
    units: int = _fact(16)  # MULTIPROCESSOR_COUNT
    warp: int = _fact(10)  # WARP_SIZE
    max_threads_per_block: int = _fact(1)  # MAX_THREADS_PER_BLOCK
    max_threads_per_unit: int = _fact(39)  # MAX_THREADS_PER_MULTIPROCESSOR
    max_blocks_per_unit: int = _fact(106, optional=True)  # MAX_BLOCKS_PER_MULTIPROCESSOR
    registers_per_unit: int = _fact(82)  # MAX_REGISTERS_PER_MULTIPROCESSOR
    registers_per_block: int = _fact(12)  # MAX_REGISTERS_PER_BLOCK
    shared_per_block: int = _fact(8)  # MAX_SHARED_MEMORY_PER_BLOCK
    shared_per_block_optin: int = _fact(97)  # MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    shared_per_unit: int = _fact(81)  # MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
    shared_reserved: int = _fact(111, optional=True)  # RESERVED_SHARED_MEMORY_PER_BLOCK
    l2_bytes: int = _fact(38)  # L2_CACHE_SIZE
    clock_khz: int = _fact(13, optional=True)  # CLOCK_RATE
    memory_clock_khz: int = _fact(36, optional=True)  # MEMORY_CLOCK_RATE
    memory_bus_bits: int = _fact(37, optional=True)  # GLOBAL_MEMORY_BUS_WIDTH

    @property
    def arch(self) -> str:
        """Architecture, such as ``sm_90``."""
        return f"sm_{self.major}{self.minor}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


#: Facts that are attributes of a device.
ATTRIBUTES = tuple(f for f in fields(CudaFacts) if f.metadata)


class Driver:
    """The driver's functions, with errors checked.

    Raises ``ProfileError`` if there is no driver, or only TVM's stand-in.
    """

    def __init__(self, libraries: Sequence[str] = LIBRARIES) -> None:
        self._library = _load(libraries)
        self.call("cuInit", 0)

    def call(self, name: str, *args: Any) -> None:
        """Call a function; raises ProfileError with the driver's name of the error if it fails."""
        code = getattr(self._library, name)(*args)
        if code:
            text = ctypes.c_char_p()
            told = ""
            if hasattr(self._library, "cuGetErrorName") and not self._library.cuGetErrorName(code, ctypes.byref(text)):
                told = (text.value or b"").decode(errors="replace")
            raise ProfileError(f"{name} failed: {told or code}", WHERE, "see that nvidia-smi works, as this user")

    def count(self) -> int:
        """Return the number of cards."""
        number = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(number))
        return number.value

    def device(self, ordinal: int) -> ctypes.c_int:
        """Return the handle of card `ordinal`."""
        if not 0 <= ordinal < self.count():
            raise ProfileError(
                f"there is no card {ordinal}", WHERE,
                f"choose a card from 0 to {self.count() - 1}" if self.count() else "see that nvidia-smi lists a card",
            )
        handle = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(handle), ordinal)
        return handle

    def facts(self, ordinal: int) -> CudaFacts:
        """Return the driver's facts about card `ordinal`."""
        device, number, size = self.device(ordinal), ctypes.c_int(), ctypes.c_size_t()
        self.call("cuDriverGetVersion", ctypes.byref(number))
        version = number.value
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, len(name), device)
        self.call("cuDeviceTotalMem_v2", ctypes.byref(size), device)
        told = {}
        for fact in ATTRIBUTES:
            number.value = 0
            try:
                self.call("cuDeviceGetAttribute", ctypes.byref(number), fact.metadata["attribute"], device)
            except ProfileError:
                if not fact.metadata["optional"]:
                    raise
            told[fact.name] = number.value
        return CudaFacts(ordinal, name.value.decode(errors="replace"), version, size.value, **told)


def _load(libraries: Sequence[str]) -> ctypes.CDLL:
    for name in libraries:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        if hasattr(library, "cuInit"):  # what lets TVM load without a driver has no such function
            return library
    raise ProfileError("no CUDA driver", WHERE, "install the NVIDIA driver, or plan for a named device: --device h200")


Extents = tuple[int, int, int]
#: Name and arguments of a kernel for one thread.
Behind = tuple[str, Sequence[Any]]


class DeviceCard:
    """A card's memory, modules, launches and events; one thread, one context.

    Parameters
    ----------
    ordinal : int
        Number of the card in the driver's order.
    """

    def __init__(self, driver: Driver, ordinal: int) -> None:
        self.facts = driver.facts(ordinal)
        self._call: Callable[..., None] = driver.call
        self._device = driver.device(ordinal)
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._call("cuCtxSetCurrent", context)
        self._events = [ctypes.c_void_p(), ctypes.c_void_p()]
        for event in self._events:
            self._call("cuEventCreate", ctypes.byref(event), 0)
        self._functions: dict[tuple[int, str], ctypes.c_void_p] = {}
        self._asked: dict[tuple[int, str], int] = {}

    def close(self) -> None:
        """Give the context back."""
        self._call("cuDevicePrimaryCtxRelease_v2", self._device)

    def free_bytes(self) -> int:
        """Return the bytes of free memory."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def alloc(self, size: int) -> int:
        """Allocate `size` bytes and return their address."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        """Free memory returned by `alloc`."""
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def set(self, address: int, byte: int, size: int) -> None:
        """Fill `size` bytes with one byte value."""
        self._call("cuMemsetD8_v2", ctypes.c_uint64(address), ctypes.c_ubyte(byte), ctypes.c_size_t(size))

    def write(self, address: int, data: bytes) -> None:
        """Copy bytes to the card."""
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))

    def read(self, address: int, size: int) -> bytes:
        """Copy bytes from the card, after all earlier launches have finished."""
        buffer = ctypes.create_string_buffer(size)
        self._call("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return buffer.raw

    def load(self, image: bytes) -> ctypes.c_void_p:
        """Load a cubin and return its module."""
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), image)
        return module

    def unload(self, module: ctypes.c_void_p) -> None:
        """Unload a module."""
        for key in [k for k in self._functions if k[0] == module.value]:
            del self._functions[key]
            self._asked.pop(key, None)
        self._call("cuModuleUnload", module)

    def launch(
        self, module: ctypes.c_void_p, kernel: str, grid: Extents, block: Extents, args: Sequence[Any],
        dynamic_shared: int = 0,
    ) -> None:  # fmt: skip
        """Start a kernel; `args` are ctypes values."""
        function = self._function(module, kernel, dynamic_shared)
        pointers = (ctypes.c_void_p * max(1, len(args)))(*(ctypes.addressof(a) for a in args))
        self._call("cuLaunchKernel", function, *grid, *block, dynamic_shared, None, pointers, None)

    def wait(self) -> None:
        """Wait until all launches have finished."""
        self._call("cuCtxSynchronize")

    def start(self) -> None:
        """Record the start event on the card."""
        self._call("cuEventRecord", self._events[0], None)

    def stop(self) -> float:
        """Return the microseconds on the card since `start`, after all launches have finished."""
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


class DriverCard:
    """A card with the kernels of one cubin, as micro-benchmarks use it; use it in a ``with`` statement."""

    def __init__(self, driver: Driver, ordinal: int, cubin: bytes) -> None:
        self._card = DeviceCard(driver, ordinal)
        self.facts, self._module = self._card.facts, self._card.load(cubin)

    def __enter__(self) -> DriverCard:
        return self

    def __exit__(self, *_: object) -> None:
        self._card.unload(self._module)
        self._card.close()

    def alloc(self, size: int) -> int:
        """Allocate `size` zeroed bytes and return their address."""
        address = self._card.alloc(size)
        self._card.set(address, 0, size)
        return address

    def free(self, address: int) -> None:
        """Free memory returned by `alloc`."""
        self._card.free(address)

    def write(self, address: int, value: int) -> None:
        """Store 8 bytes."""
        self._card.write(address, value.to_bytes(8, "little"))

    def read(self, address: int) -> int:
        """Load 8 bytes."""
        return int.from_bytes(self._card.read(address, 8), "little")

    def time(
        self, kernel: str, grid: int, block: int, args: Sequence[Any], times: int = 1, behind: Behind | None = None
    ) -> float:
        """Return the nanoseconds between events around `times` launches, which queue behind the kernel `behind`."""
        card, one = self._card, (1, 1, 1)
        if behind is not None:
            card.launch(self._module, behind[0], one, one, behind[1])
        card.start()
        for _ in range(times):
            card.launch(self._module, kernel, (grid, 1, 1), (block, 1, 1), args)
        return card.stop() * 1e3
