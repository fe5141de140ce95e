"""Cubins of CUDA sources, each compiled once: the user's cache keeps them."""

from __future__ import annotations

from .compile import compile_cuda
from .kernel_cache import kernel_cache, key_of


def kept_cubin(source: str, arch: str) -> bytes:
    """Return the cubin of a source, from the cache if it is there.

    Raises
    ------
    ToolchainError
        The compiler refused it, or there is none.
    """
    cache, key = kernel_cache(), key_of("cubin", source, arch)
    content = cache.get(key) if cache is not None else None
    if content is None:
        content = compile_cuda(source, arch).data
        if cache is not None:
            cache.put(key, content)
    return content
