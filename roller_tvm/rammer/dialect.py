"""Languages of fused kernels: the words in which each differs from the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .cuda_functions import DeviceFunction, device_function, preamble

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
    read : function
        Turns an operator's kernel into a device function; see `device_code.device_function`.
    preamble : function
        Returns the parts of an operator's source outside of kernels, in pieces.
    helpers : str
        Definitions that device functions and kernels use.
    kernel : str
        Text before a kernel's name, for ``{threads}`` threads.
    memory : str
        Qualifier of pointers to the device's memory.
    index : str
        Text before ``{x, y, z}``, a position.
    thread, block : str
        Numbers of the thread in its block, and of the block.
    arena, dynamic_arena : str
        Declares a block's shared memory of ``{size}`` bytes, or of the launch's size; '' if it cannot.

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
