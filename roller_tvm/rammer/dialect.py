"""What a fused kernel is written in: the words in which its language differs from the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .device_code import DeviceFunction, device_function, preamble

_HELPERS = """
struct rammer_index { unsigned x, y, z; };
template <class T> static __device__ __forceinline__ T rammer_load(const T* p) { return *p; }
static __device__ __forceinline__ void rammer_sync(unsigned threads) {
  asm volatile("bar.sync 1, %0;" :: "r"(threads) : "memory");
}
static __device__ __forceinline__ void rammer_pause() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
  __nanosleep(20);
#endif
}
"""


@dataclass(frozen=True)
class Dialect:
    """A language for fused kernels.

    Parameters
    ----------
    name : str
    read : function
        A kernel of an operator as a device function; see `device_code.device_function`.
    preamble : function
        What is no kernel in an operator's source, in pieces.
    helpers : str
        What device functions and kernels count on.
    kernel : str
        What stands before a kernel's name, for so many ``{threads}``.
    memory : str
        Qualifier of pointers to the device's memory.
    index : str
        What stands before ``{x, y, z}``, a place.
    thread, block : str
        Numbers of the thread in its block, and of the block.
    arena, dynamic_arena : str
        Declares a block's shared memory of ``{size}`` bytes, or of as many as the launch gives; '' where it cannot.
    waits : bool
        Whether blocks may wait for one another.

    Examples
    --------
    >>> CUDA.kernel.format(threads=128)
    'extern "C" __global__ void __launch_bounds__(128)'
    """

    name: str
    read: Callable[..., DeviceFunction]
    preamble: Callable[[str], tuple[str, ...]]
    helpers: str = field(repr=False)
    kernel: str
    memory: str
    index: str
    thread: str
    block: str
    arena: str
    dynamic_arena: str
    waits: bool


CUDA = Dialect(
    name="CUDA C++",
    read=device_function,
    preamble=preamble,
    helpers=_HELPERS,
    kernel='extern "C" __global__ void __launch_bounds__({threads})',
    memory="",
    index="",
    thread="threadIdx.x",
    block="blockIdx.x",
    arena="__shared__ __align__(128) unsigned char rammer_arena[{size}]",
    dynamic_arena="extern __shared__ __align__(128) unsigned char rammer_arena[]",
    waits=True,
)
