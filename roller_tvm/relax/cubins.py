"""Cubins of CUDA kernels, compiled side by side before the library that has their source is loaded.

A library holds kernels of a GPU as source where it was built without one; TVM's runtime asks
`tvm_callback_cuda_compile` for what the card takes. A store answers with what it has compiled already, maybe elsewhere.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..codegen.compile import compile_cuda
from ..codegen.kernel_cache import kernel_cache, key_of

#: TVM's name of the function that compiles CUDA.
CALLBACK = "tvm_callback_cuda_compile"
#: TVM's name of the function that loads such a library's kernels.
_LOADER = "ffi.Module.load_from_bytes.cuda"
#: Stores in use, the innermost last.
_USED: list[Cubins] = []


@dataclass(frozen=True)
class Cubins:
    """Compiled kernels.

    Parameters
    ----------
    arch : str
        Such as ``sm_90``.
    folder : Path, optional
        By default the user's cache alone has them.
    """

    arch: str
    folder: Path | None = None

    def compile(self, source: str) -> bytes:
        """Return the cubin of a source, compiled unless it is here.

        Raises
        ------
        ToolchainError
            The compiler refused it, or there is none.
        """
        name = f"{hashlib.sha256(source.encode()).hexdigest()[:32]}.{self.arch}.cubin"
        if self.folder is not None:
            with contextlib.suppress(FileNotFoundError):
                return (self.folder / name).read_bytes()
        cache, key = kernel_cache(), key_of("cubin", source, self.arch)
        content = cache.get(key) if cache is not None else None
        if content is None:
            content = compile_cuda(source, self.arch).data
            if cache is not None:
                cache.put(key, content)
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(content)
        return content

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Have TVM's runtime take these while it loads a library or builds one."""
        import tvm_ffi

        _load_runtime()
        before = tvm_ffi.get_global_func(CALLBACK, allow_missing=True)
        tvm_ffi.register_global_func(CALLBACK, lambda code, *_: self.compile(_text(code)), override=True)
        _USED.append(self)
        try:
            yield
        finally:
            _USED.pop()
            if before is not None:
                tvm_ffi.register_global_func(CALLBACK, before, override=True)


@contextlib.contextmanager
def compiled_here(tvm: Any) -> Iterator[None]:
    """Have kernels of a library that come as source compiled for this machine's card, by NVRTC or nvcc."""
    _load_runtime()
    card = tvm.cuda(0)
    if _USED or not card.exist:
        yield
        return
    with Cubins(f"sm_{str(card.compute_version).replace('.', '')}").used():
        yield


def _load_runtime() -> None:
    """Load TVM's runtime for CUDA where TVM itself does not: without a compiler."""
    import ctypes

    import tvm

    if tvm.get_global_func(_LOADER, allow_missing=True) is None:
        for path in Path(tvm.__file__).parent.glob("lib*/libtvm_runtime_cuda.so"):
            with contextlib.suppress(OSError):  # no driver, or no CUDA runtime: whoever loads kernels is told
                ctypes.CDLL(str(path))


def _text(code: str | bytes) -> str:
    return code if isinstance(code, str) else bytes(code).decode()
