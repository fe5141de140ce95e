"""The choice of a fused kernel's launch bounds by a compiler here: nothing is spilled, and all blocks fit at once.

The check holds for the compiler options it was made with, so it uses those of the caller: TVM 0.27 asks ptxas for its
register level 10, with which a kernel of NASNet's cell (224 threads, 5 blocks on a unit of sm_80) exceeds the 32
registers that it takes with our options.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..codegen import compile_cuda, find_compilers, kernel_resources
from ..device import DeviceSpec
from ..errors import ToolchainError
from ..micro_perf.registers import register_cap
from .cuda_functions import CannotFuse
from .fused_kernel import FusedKernel
from .launch_bounds import Bounds, bounds_of, together

_BOUNDS = re.compile(r"\b__launch_bounds__\([^)]*\)")


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
    >>> made = without_spills(kernel, device, "sm_80")
    >>> made.bounds.threads >= 128
    True
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
