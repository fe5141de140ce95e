"""The CUDA driver through ctypes: query a card, launch and time kernels. Imports no TVM.

Not yet run on a card: the calls follow `cuda.h` of CUDA 12.9 and 13.0, and are tested with a library of the driver's
function names.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from roller_tvm.errors import ProfileError

LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
WHERE = "CUDA driver"

#: Fact -> number of its CUdevice_attribute (CU_DEVICE_ATTRIBUTE_...).
ATTRIBUTES = {
    "major": 75,  # COMPUTE_CAPABILITY_MAJOR
    "minor": 76,  # COMPUTE_CAPABILITY_MINOR
    "units": 16,  # MULTIPROCESSOR_COUNT
    "warp": 10,  # WARP_SIZE
    "max_threads_per_block": 1,  # MAX_THREADS_PER_BLOCK
    "max_threads_per_unit": 39,  # MAX_THREADS_PER_MULTIPROCESSOR
    "max_blocks_per_unit": 106,  # MAX_BLOCKS_PER_MULTIPROCESSOR
    "registers_per_unit": 82,  # MAX_REGISTERS_PER_MULTIPROCESSOR
    "registers_per_block": 12,  # MAX_REGISTERS_PER_BLOCK
    "shared_per_block": 8,  # MAX_SHARED_MEMORY_PER_BLOCK
    "shared_per_block_optin": 97,  # MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    "shared_per_unit": 81,  # MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
    "shared_reserved": 111,  # RESERVED_SHARED_MEMORY_PER_BLOCK
    "l2_bytes": 38,  # L2_CACHE_SIZE
    "clock_khz": 13,  # CLOCK_RATE
    "memory_clock_khz": 36,  # MEMORY_CLOCK_RATE
    "memory_bus_bits": 37,  # GLOBAL_MEMORY_BUS_WIDTH
}
#: Facts that an older driver, or one that hides them, may not tell; then 0.
OPTIONAL = ("max_blocks_per_unit", "shared_reserved", "clock_khz", "memory_clock_khz", "memory_bus_bits")


@dataclass(frozen=True)
class CudaFacts:
    """A driver's facts about a card, in the driver's units."""

    ordinal: int
    name: str
    driver: int
    memory_bytes: int
    major: int
    minor: int
    units: int
    warp: int
    max_threads_per_block: int
    max_threads_per_unit: int
    max_blocks_per_unit: int
    registers_per_unit: int
    registers_per_block: int
    shared_per_block: int
    shared_per_block_optin: int
    shared_per_unit: int
    shared_reserved: int
    l2_bytes: int
    clock_khz: int
    memory_clock_khz: int
    memory_bus_bits: int

    @property
    def arch(self) -> str:
        """Architecture, such as ``sm_90``."""
        return f"sm_{self.major}{self.minor}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


#: Name and arguments of a kernel for one thread.
Behind = tuple[str, Sequence[Any]]


class Card(Protocol):
    """The operations that micro-benchmarks need of a card with their kernels loaded; tests provide their own."""

    facts: CudaFacts

    def alloc(self, size: int) -> int:
        """Allocate `size` zeroed bytes and return their address."""

    def free(self, address: int) -> None:
        """Free memory returned by `alloc`."""

    def write(self, address: int, value: int) -> None:
        """Store 8 bytes."""

    def read(self, address: int) -> int:
        """Load 8 bytes."""

    def time(
        self, kernel: str, grid: int, block: int, args: Sequence[Any], times: int = 1, behind: Behind | None = None
    ) -> float:
        """Return the nanoseconds on the card of `times` launches in sequence, after `behind` has finished."""


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
        for fact, attribute in ATTRIBUTES.items():
            number.value = 0
            try:
                self.call("cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
            except ProfileError:
                if fact not in OPTIONAL:
                    raise
            told[fact] = number.value
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


class DriverCard:
    """A `Card` on the driver, with the kernels of one cubin; use it in a ``with`` statement."""

    def __init__(self, driver: Driver, ordinal: int, cubin: bytes) -> None:
        self.facts = driver.facts(ordinal)
        self._call: Callable[..., None] = driver.call
        self._device = driver.device(ordinal)
        context, self._module = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._call("cuCtxSetCurrent", context)
        self._call("cuModuleLoadData", ctypes.byref(self._module), cubin)
        self._events = [ctypes.c_void_p(), ctypes.c_void_p()]
        for event in self._events:
            self._call("cuEventCreate", ctypes.byref(event), 0)
        self._functions: dict[str, ctypes.c_void_p] = {}

    def __enter__(self) -> DriverCard:
        return self

    def __exit__(self, *_: object) -> None:
        self._call("cuModuleUnload", self._module)
        self._call("cuDevicePrimaryCtxRelease_v2", self._device)

    def alloc(self, size: int) -> int:
        """Allocate `size` zeroed bytes and return their address."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self._call("cuMemsetD8_v2", address, ctypes.c_ubyte(0), ctypes.c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        """Free memory returned by `alloc`."""
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def write(self, address: int, value: int) -> None:
        """Store 8 bytes."""
        word = ctypes.c_uint64(value)
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), ctypes.byref(word), ctypes.c_size_t(8))

    def read(self, address: int) -> int:
        """Load 8 bytes."""
        word = ctypes.c_uint64()
        self._call("cuMemcpyDtoH_v2", ctypes.byref(word), ctypes.c_uint64(address), ctypes.c_size_t(8))
        return word.value

    def time(
        self, kernel: str, grid: int, block: int, args: Sequence[Any], times: int = 1, behind: Behind | None = None
    ) -> float:
        """Return the nanoseconds between events around `times` launches, which queue behind the kernel `behind`."""
        function, (start, end) = self._function(kernel), self._events
        if behind is not None:
            self._launch(self._function(behind[0]), 1, 1, behind[1])
        self._call("cuEventRecord", start, None)
        for _ in range(times):
            self._launch(function, grid, block, args)
        self._call("cuEventRecord", end, None)
        self._call("cuEventSynchronize", end)
        milliseconds = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
        return milliseconds.value * 1e6

    def _launch(self, function: ctypes.c_void_p, grid: int, block: int, args: Sequence[Any]) -> None:
        pointers = (ctypes.c_void_p * max(1, len(args)))(*(ctypes.addressof(a) for a in args))
        self._call("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, 0, None, pointers, None)

    def _function(self, kernel: str) -> ctypes.c_void_p:
        if kernel not in self._functions:
            function = ctypes.c_void_p()
            self._call("cuModuleGetFunction", ctypes.byref(function), self._module, kernel.encode())
            self._functions[kernel] = function
        return self._functions[kernel]
