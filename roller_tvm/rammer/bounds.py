"""Launch bounds of kernels whose blocks wait for one another, and the check that the compiler spills nothing.

All blocks of such a kernel must be on the device at once, so it may use only so many registers. There are two ways to
tell the compiler. ``__launch_bounds__(threads, blocks)`` promises blocks beside each other, and ptxas takes it as leave
to fill their share of the register file: it keeps more values alive than the code needs, and spills the rest. The
bound of *one* block as large as all of a unit together, ``__launch_bounds__(threads * blocks)``, allows as many
registers, and ptxas takes only as many as it needs, as for ordinary kernels. Both hold for every compiler; the kernel
is launched with fewer threads than the second bound allows.

Other bounds allow more registers. They come last, and are used only if the compiler here was seen to take few enough.
If another compiler takes more, not all blocks can start, and the kernel ends with an error (``code._PATIENCE``).

Measured with nvcc 13.0 on 16 kernels that wait, of attention, NASNet, Inception and ResNeXt on sm_80 and sm_90 (the
last table of ``benchmarks/rtask_compiled.txt``): by blocks 10 spill and the 16 take 38 to 168 registers, by one large
block 2 spill and they take 32 to 113. Fewer blocks, and so more registers, are no remedy: six of those that spill by
blocks need 94 to 255 registers until they no longer do. A bound at the largest possible block lets ptxas aim at two
such blocks, 32 registers: in that case the bound by blocks comes first.

The check holds for the compiler options it was made with, so it uses those of the caller: TVM 0.27 asks ptxas for its
register level 10, with which a kernel of NASNet's cell (224 threads, 5 blocks on a unit of sm_80) exceeds the 32
registers that it takes with our options.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..codegen import compile_cuda, find_compilers, kernel_resources
from ..device import DeviceSpec
from ..errors import ToolchainError
from ..micro_perf.registers import register_cap
from .device_code import CannotFuse

if TYPE_CHECKING:
    from .code import FusedKernel

_BOUNDS = re.compile(r"\b__launch_bounds__\([^)]*\)")


@dataclass(frozen=True)
class Bounds:
    """Arguments of a kernel's ``__launch_bounds__``.

    Parameters
    ----------
    threads : int
        Most threads of a block.
    blocks : int
        Least blocks on a unit; 0 if not stated.

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
    """Return the threads of `resident` blocks on a unit, each rounded up to whole warps."""
    return -(-threads // spec.vector_width) * spec.vector_width * resident


def bounds_of(spec: DeviceSpec, threads: int, resident: int, larger: bool = True) -> tuple[Bounds, ...]:
    """Return launch bounds for blocks that must share a unit at once: the first for any compiler, the last for some.

    Parameters
    ----------
    spec : DeviceSpec
    threads : int
        Threads of a block.
    resident : int
        Blocks on a unit.
    larger : bool
        True if bounds may name more threads than the kernel is launched with; TensorIR's cannot.

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
    """Return a kernel with other launch bounds."""
    source, count = _BOUNDS.subn(f"__launch_bounds__({bounds})", kernel.source)
    if count != 1:
        raise ValueError(f"{count} launch bounds in the source of a fused kernel")
    return replace(kernel, source=source, bounds=bounds)


def without_spills(
    kernel: FusedKernel, spec: DeviceSpec, arch: str, compiler: str = "auto",
    text: Callable[[FusedKernel], str] | None = None, options: Sequence[str] = (),
) -> FusedKernel:  # fmt: skip
    """Return a kernel with launch bounds by which the compiler here spills nothing and all its blocks fit at once.

    A kernel without waiting blocks is returned as it is. So is any kernel if there is no compiler for the architecture
    here: its first bounds hold for every compiler.

    Parameters
    ----------
    kernel : FusedKernel
    spec : DeviceSpec
    arch : str
        Such as 'sm_80'.
    compiler : str
        'auto', 'nvrtc' or 'nvcc'.
    text : function of FusedKernel -> str, optional
        Kernel -> the source that TVM will generate and compile, if that is not the kernel's own: then no bound is
        larger than the kernel's blocks.
    options : sequence of str
        Compiler options beyond our own.

    Raises
    ------
    CannotFuse
        If it spills by all of the bounds.

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
