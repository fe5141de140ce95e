"""The CUDA driver through ctypes: what a card is asked, and kernels launched and timed. Imports no TVM.

Not yet run on a card: the calls follow `cuda.h` of CUDA 12.9 and 13.0, and are tested against a library that has the
driver's names.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from roller_tvm.errors import ProfileError

LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
WHERE = "CUDA driver"

#: Fact -> number of the CUdevice_attribute (CU_DEVICE_ATTRIBUTE_...) that tells it.
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
#: What an older driver, or one that hides it, may not tell; 0 then.
OPTIONAL = ("max_blocks_per_unit", "shared_reserved", "clock_khz", "memory_clock_khz", "memory_bus_bits")


@dataclass(frozen=True)
class CudaFacts:
    """What a card's driver tells of it, in the driver's units."""

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
        """Such as ``sm_90``."""
        return f"sm_{self.major}{self.minor}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


#: A kernel for one thread, and its arguments.
Behind = tuple[str, Sequence[Any]]


class Card(Protocol):
    """What micro-benchmarks ask of a card with their kernels loaded; tests bring one of their own."""

    facts: CudaFacts

    def alloc(self, size: int) -> int:
        """Address of `size` zeroed bytes."""

    def free(self, address: int) -> None:
        """Give them back."""

    def write(self, address: int, value: int) -> None:
        """Store 8 bytes."""

    def read(self, address: int) -> int:
        """Load 8 bytes."""

    def time(
        self, kernel: str, grid: int, block: int, args: Sequence[Any], times: int = 1, behind: Behind | None = None
    ) -> float:
        """Nanoseconds that `times` launches, one after the other, take on the card, once a kernel before is done."""


class Driver:
    """The driver's functions, checked. ``ProfileError`` where there is no driver, or none but TVM's stand-in."""

    def __init__(self, libraries: Sequence[str] = LIBRARIES) -> None:
        self._library = _load(libraries)
        self.call("cuInit", 0)

    def call(self, name: str, *args: Any) -> None:
        """Call a function; ProfileError with the driver's name of the error if it fails."""
        code = getattr(self._library, name)(*args)
        if code:
            text = ctypes.c_char_p()
            told = ""
            if hasattr(self._library, "cuGetErrorName") and not self._library.cuGetErrorName(code, ctypes.byref(text)):
                told = (text.value or b"").decode(errors="replace")
            raise ProfileError(f"{name} failed: {told or code}", WHERE, "see that nvidia-smi works, as this user")

    def count(self) -> int:
        """How many cards there are."""
        number = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(number))
        return number.value

    def device(self, ordinal: int) -> ctypes.c_int:
        """The handle of card `ordinal`."""
        if not 0 <= ordinal < self.count():
            raise ProfileError(
                f"there is no card {ordinal}", WHERE, f"cards are 0 to {self.count() - 1}" if self.count() else "none"
            )
        handle = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(handle), ordinal)
        return handle

    def facts(self, ordinal: int) -> CudaFacts:
        """What the driver tells of card `ordinal`."""
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
    """A `Card` behind the driver, with the kernels of one cubin; close it, or use it in a ``with`` statement."""

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
        """Address of `size` zeroed bytes."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self._call("cuMemsetD8_v2", address, ctypes.c_ubyte(0), ctypes.c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        """Give memory back."""
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
        """Nanoseconds between two events around `times` launches; `behind` runs before, so that they queue."""
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
