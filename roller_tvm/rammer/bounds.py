"""Launch bounds of kernels whose blocks wait for one another, and the check that none of their registers is spilled.

Such a kernel may take no more registers than let all its blocks be on the device at once. That can be said in two ways.
``__launch_bounds__(threads, blocks)`` promises blocks beside each other, and ptxas takes it as leave to fill their
share of the register file: it keeps more alive than the code needs, and spills what is left over. The bound of *one*
block as large as all of a unit together, ``__launch_bounds__(threads * blocks)``, allows as many registers, and ptxas
takes what it needs, as it does of ordinary kernels. Both hold for every compiler; the kernel is launched with fewer
threads than the second allows.

Other bounds allow more registers. They come last, and only where the compiler here was seen to take few enough; should
another one take more, not all blocks can start, and the kernel ends with an error (``code._PATIENCE``).

Measured with nvcc 13.0 on 16 kernels that wait, of attention, NASNet, Inception and ResNeXt on sm_80 and sm_90 (the
last table of ``benchmarks/rtask_compiled.txt``): by blocks 10 spill and the 16 take 38 to 168 registers, by one large
block 2 spill and they take 32 to 113. Fewer blocks, and so more registers, are no remedy: six of those that spill by
blocks need 94 to 255 registers until they no longer do. A bound at the largest block that there is lets ptxas aim at
two of those, 32 registers: there blocks come first.

What is seen holds for the options it was seen by, so they are those of who compiles: TVM 0.27 asks ptxas for its
register level 10, by which a kernel of NASNet's cell (224 threads, 5 blocks on a unit of sm_80) no longer keeps to the
32 registers that it takes by ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..device import DeviceSpec
from ..errors import ToolchainError
from ..model.registers import register_cap
from ..toolchain import compile_cuda, find_compilers, kernel_resources
from .device_code import CannotFuse

if TYPE_CHECKING:
    from .code import FusedKernel

_BOUNDS = re.compile(r"\b__launch_bounds__\([^)]*\)")


@dataclass(frozen=True)
class Bounds:
    """What a kernel's ``__launch_bounds__`` say.

    Parameters
    ----------
    threads : int
        Of a block, at most.
    blocks : int
        On a unit, at least; 0 where it is not said.

    Examples
    --------
    >>> print(Bounds(640), Bounds(128, 5))
    640 128, 5
    """

    threads: int
    blocks: int = 0

    def __post_init__(self) -> None:
        if self.threads < 1 or self.blocks < 0:
            raise ValueError(f"launch bounds need threads (got {self.threads} and {self.blocks} blocks)")

    def __str__(self) -> str:
        return f"{self.threads}, {self.blocks}" if self.blocks else str(self.threads)


def together(spec: DeviceSpec, threads: int, resident: int) -> int:
    """Threads of so many blocks on a unit, whole warps each."""
    return -(-threads // spec.vector_width) * spec.vector_width * resident


def bounds_of(spec: DeviceSpec, threads: int, resident: int, larger: bool = True) -> tuple[Bounds, ...]:
    """Launch bounds for blocks that have to be on a unit at once: the first by any compiler, the last by some.

    Parameters
    ----------
    spec : DeviceSpec
    threads : int
        Of a block.
    resident : int
        Blocks of a unit.
    larger : bool
        Whether bounds can name more threads than the kernel is launched with; TensorIR's cannot.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> [str(b) for b in bounds_of(load_device("a100"), 128, 5)]
    ['640', '128, 5', '128']
    >>> [str(b) for b in bounds_of(load_device("a100"), 224, 5)]
    ['224, 5', '1024', '224']
    >>> [str(b) for b in bounds_of(load_device("a100"), 128, 5, larger=False)]
    ['128, 5', '128']
    """
    most = spec.limits.max_threads_per_block or 1024
    every = together(spec, threads, resident)
    by_blocks, plain = Bounds(threads, resident), Bounds(threads)
    if not larger:
        return by_blocks, plain
    found = (Bounds(every), by_blocks, plain) if every < most else (by_blocks, Bounds(most), plain)
    return tuple(dict.fromkeys(found))


def bounded(kernel: FusedKernel, bounds: Bounds) -> FusedKernel:
    """A kernel with other launch bounds."""
    source, count = _BOUNDS.subn(f"__launch_bounds__({bounds})", kernel.source)
    if count != 1:
        raise ValueError(f"{count} launch bounds in the source of a fused kernel")
    return replace(kernel, source=source, bounds=bounds)


def without_spills(
    kernel: FusedKernel, spec: DeviceSpec, arch: str, compiler: str = "auto",
    text: Callable[[FusedKernel], str] | None = None, options: Sequence[str] = (),
) -> FusedKernel:  # fmt: skip
    """A kernel with launch bounds by which the compiler here spills nothing and lets all its blocks be resident.

    Of a kernel whose blocks do not wait nothing is asked, and where no compiler for the architecture is here the kernel
    stays as it is: its first bounds hold by themselves.

    Parameters
    ----------
    kernel : FusedKernel
    spec : DeviceSpec
    arch : str
        Such as 'sm_80'.
    compiler : str
        'auto', 'nvrtc' or 'nvcc'.
    text : function of FusedKernel -> str, optional
        The source that TVM will make and compile, where that is not the kernel's own: no bound in it is larger than
        the kernel's blocks.
    options : sequence of str
        That it will be compiled with, beyond our own.

    Raises
    ------
    CannotFuse
        It spills by all of them.

    Examples
    --------
    >>> made = without_spills(kernel, load_device("a100"), "sm_80")  # doctest: +SKIP
    >>> print(made.bounds, made.compiled)  # doctest: +SKIP
    640 56 registers, 0 B local, 18816 B shared
    """
    known = [c for c in find_compilers() if compiler in ("auto", c.name) and c.supports(arch)]
    if not kernel.resident or not known:
        return kernel
    (launch,) = kernel.host.launches
    threads = launch.block[0]
    assert isinstance(threads, int)
    most = register_cap(spec, together(spec, threads, kernel.resident))
    told: list[str] = []
    for bounds in bounds_of(spec, threads, kernel.resident, larger=text is None):
        made = bounded(kernel, bounds)
        source = text(made) if text else made.source
        try:
            (taken,) = kernel_resources(compile_cuda(source, arch, compiler, launch.kernel, options)).values()
        except ToolchainError as error:
            if not told:  # what cannot be compiled here is for the build to tell
                return kernel
            told.append(f"({bounds}): {error.what}")
            continue
        if not taken.spills and (most is None or taken.registers <= most):
            return replace(made, compiled=taken)
        told.append(f"({bounds}): {taken}")
    raise CannotFuse(
        f"it spills, or takes more than {most} registers, by all launch bounds: {'; '.join(told)}",
        where=f"plan '{launch.kernel}' for {arch}", remedy="fuse fewer operators",
    )  # fmt: skip


__all__ = ["Bounds", "bounded", "bounds_of", "together", "without_spills"]
