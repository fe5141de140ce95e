"""Resources of the kernels of a built CUDA module, compiled with the compiler found here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..codegen import KernelResources, compile_cuda, find_compilers, kernel_resources


def cuda_sources(module: Any) -> Iterator[str]:
    """CUDA sources in a built module and what it imports."""
    for part in module.imports:
        if str(part.kind) == "cuda":
            yield str(part.inspect_source())
        yield from cuda_sources(part)


def resources_of(module: Any, target: Any) -> Mapping[str, KernelResources]:
    """Kernel -> registers, local and shared memory, for the target's architecture.

    Raises
    ------
    ToolchainError
        No compiler, or it refused the source.
    """
    arch = str(target.attrs["arch"])
    return {k: v for source in cuda_sources(module) for k, v in kernel_resources(compile_cuda(source, arch)).items()}


def spilled_bytes(module: Any, target: Any) -> int:
    """Local memory a thread of the kernel that takes most; 0 where none spills, or no compiler is here to tell."""
    if not find_compilers():
        return 0
    return max((k.local_bytes for k in resources_of(module, target).values() if k.spills), default=0)
