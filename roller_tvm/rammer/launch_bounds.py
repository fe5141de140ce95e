"""Launch bounds of kernels whose blocks wait for one another.

All blocks of such a kernel must be on the device at once, so it may use only so many registers. There are two ways to
tell the compiler. ``__launch_bounds__(threads, blocks)`` promises blocks beside each other, and ptxas takes it as leave
to fill their share of the register file: it keeps more values alive than the code needs, and spills the rest. The
bound of *one* block as large as all of a unit together, ``__launch_bounds__(threads * blocks)``, allows as many
registers, and ptxas takes only as many as it needs, as for ordinary kernels. Both hold for every compiler; the kernel
is launched with fewer threads than the second bound allows.

Other bounds allow more registers. They come last, and are used only if the compiler here was seen to take few enough.
If another compiler takes more, not all blocks can start, and the kernel ends with an error
(``fused_kernel._PATIENCE``).

Measured with nvcc 13.0 on 16 kernels that wait, of attention, NASNet, Inception and ResNeXt on sm_80 and sm_90 (the
last table of ``benchmarks/rtask_compiled.txt``): by blocks 10 spill and the 16 take 38 to 168 registers, by one large
block 2 spill and they take 32 to 113. Fewer blocks, and so more registers, are no remedy: six of those that spill by
blocks need 94 to 255 registers until they no longer do. A bound at the largest possible block lets ptxas aim at two
such blocks, 32 registers: in that case the bound by blocks comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..device import DeviceSpec


@dataclass(frozen=True)
class Bounds:
    """Arguments of a kernel's ``__launch_bounds__``.

    Parameters
    ----------
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
    most = spec.limits.most_threads
    every = together(spec, threads, resident)
    by_blocks, plain = Bounds(threads, resident), Bounds(threads)
    if not larger:
        return by_blocks, plain
    found = (Bounds(every), by_blocks, plain) if every < most else (by_blocks, Bounds(most), plain)
    return tuple(dict.fromkeys(found))
