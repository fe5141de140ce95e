"""Cubins of CUDA kernels, compiled side by side before the library that has their source is loaded.

A library holds kernels of a GPU as source where it was built without one; TVM's runtime asks
`tvm_callback_cuda_compile` for what the card takes. A store answers with what it has compiled already, maybe elsewhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..codegen.kept_cubins import kept_cubin
from ..codegen.mended_cuda import GENERATE

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
        content = kept_cubin(source, self.arch)
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(content)
        return content

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Have TVM's runtime take these while it loads a library or builds one."""
        _load_runtime()
        with _instead(CALLBACK, lambda _: lambda code, *_: self.compile(_text(code))):
            _USED.append(self)
            try:
                yield
            finally:
                _USED.pop()

    def apart(self) -> contextlib.AbstractContextManager[None]:
        """Have the kernels of a module compiled side by side, in as many parts as there are cores."""
        return _instead(GENERATE, lambda generate: partial(self._in_parts, generate))

    def _in_parts(self, generate: Callable[..., Any], mod: Any, target: Any) -> Any:
        """Return TVM's module of a module's kernels; the parts but the first are its imports."""
        sources: list[str] = []

        def noted(code: str | bytes, *_: Any) -> bytes:
            sources.append(_text(code))
            return b""

        with _instead(CALLBACK, lambda _: noted):
            whole = generate(mod, target)
            if not sources:  # without a card TVM compiles nothing
                return whole
            parts = _parts(mod, cores := len(os.sched_getaffinity(0)))
            sources.clear()
            for part in parts:
                generate(part, target)
        with ThreadPoolExecutor(cores) as pool:  # the compiler holds no lock of Python's
            compiled = dict(zip(sources, pool.map(self.compile, sources), strict=True))
        with _instead(CALLBACK, lambda _: lambda code, *_: compiled[_text(code)]):
            first, *others = (generate(part, target) for part in parts)
        for other in others:
            first.import_module(other)
        return first


@contextlib.contextmanager
def _instead(name: str, made: Callable[[Any], Any]) -> Iterator[None]:
    """Have TVM call a function made of its own one, if it has that."""
    import tvm_ffi

    before = tvm_ffi.get_global_func(name, allow_missing=True)
    if before is None and name != CALLBACK:
        yield
        return
    tvm_ffi.register_global_func(name, made(before), override=True)
    try:
        yield
    finally:
        if before is not None:
            tvm_ffi.register_global_func(name, before, override=True)


def _parts(mod: Any, most: int) -> list[Any]:
    """Return a module's functions in parts of about as many statements, at most so many parts."""
    import tvm

    sized = sorted(((len(str(func)), str(var.name_hint), var) for var, func in mod.functions.items()), reverse=True)
    parts: list[list[Any]] = [[] for _ in range(min(most, len(sized)))]
    sizes = [0] * len(parts)
    for size, _, var in sized:
        least = sizes.index(min(sizes))
        sizes[least] += size
        parts[least].append(var)
    return [tvm.IRModule({var: mod[var] for var in part}, attrs=mod.attrs) for part in parts]


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
