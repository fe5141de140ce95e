"""Cubins of CUDA kernels, compiled side by side before the library that has their source is loaded.

A library holds kernels of a GPU as source where it was built without one; TVM's runtime asks `tvm_callback_cuda_compile`
for what the card takes. A store answers with what it has compiled already; that may have been on another machine.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..codegen.compile import compile_cuda
from ..codegen.kernel_cache import kernel_cache, key_of

#: TVM's name of the function that compiles CUDA.
CALLBACK = "tvm_callback_cuda_compile"


@dataclass(frozen=True)
class Cubins:
    """Compiled kernels in a folder.

    Parameters
    ----------
    folder : Path
    arch : str
        Such as ``sm_90``.
    """

    folder: Path
    arch: str

    def _path(self, source: str) -> Path:
        return self.folder / f"{hashlib.sha256(source.encode()).hexdigest()[:32]}.{self.arch}.cubin"

    def compile(self, source: str) -> bytes:
        """Return the cubin of a source, compiled unless it is here.

        Raises
        ------
        ToolchainError
            The compiler refused it, or there is none.
        """
        path = self._path(source)
        with contextlib.suppress(FileNotFoundError):
            return path.read_bytes()
        cache, key = kernel_cache(), key_of("cubin", source, self.arch)
        content = cache.get(key) if cache is not None else None
        if content is None:
            content = compile_cuda(source, self.arch).data
            if cache is not None:
                cache.put(key, content)
        self.folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return content

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Have TVM's runtime take these while it loads a library."""
        import tvm_ffi

        before = tvm_ffi.get_global_func(CALLBACK, allow_missing=True)
        tvm_ffi.register_global_func(CALLBACK, lambda code, *_: self.compile(_text(code)), override=True)
        try:
            yield
        finally:
            if before is not None:
                tvm_ffi.register_global_func(CALLBACK, before, override=True)


def _text(code: str | bytes) -> str:
    return code if isinstance(code, str) else bytes(code).decode()
