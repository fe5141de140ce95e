"""Compile CUDA C++ to a library for this CPU: the emulator once, each source once, both cached by their hash."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from roller_check.translate import translated
from roller_tvm.codegen.cuda_text import CudaSource
from roller_tvm.codegen.errors import NotEmulated
from roller_tvm.errors import RollerError, ToolchainError, cannot_write
from roller_tvm.folders import (
    cache_folder,
    check_space,
    private_folder,
    temporary_folder,
    work_folder,
    written_by_others,
)

RUNTIME = Path(__file__).parent / "runtime"
HEADER = RUNTIME / "include" / "emulated.h"
_PARTS = ("memory.cc", "shared.cc", "access.cc", "copies.cc", "hooks.cc", "blocks.cc", "warp.cc", "tensor.cc")
_COMMON = ("-std=c++17", "-fPIC", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE", "-fno-stack-protector")
# The sanitizer's calls for every access to memory are defined by the emulator; the sanitizer's own library is not used.
_CHECKED = ("-fsanitize=thread", "-fsanitize=alignment,bounds", "-g1")
_GCC_CHECKED = ("--param=tsan-instrument-func-entry-exit=0",)
_CLANG_CHECKED = ("-mllvm", "-tsan-instrument-func-entry-exit=0")
_LIMIT_S = 600.0
_LOG_LINES = 12
#: Libraries of kernels kept in the cache (some 50 KiB each); the ones used longest ago go first.
_KEPT = 4000
#: Compiled headers kept, of 16 MiB each.
_KEPT_HEADERS = 4
#: Begins the name of a library that is being written.
TEMPORARY = ".new-"


@functools.lru_cache(maxsize=1)
def compiler() -> tuple[str, ...]:
    """Return the command of a C++17 compiler: $CXX, else g++, else clang++.

    Raises
    ------
    ToolchainError
        No compiler works; the remedy says how to get one.
    """
    tried = []
    for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++"):
        path = shutil.which(name) if name else None
        if not path:
            continue
        probe = subprocess.run(
            [path, "-std=c++17", "-x", "c++", "-fsyntax-only", "-"], input="#include <type_traits>\nint i;",
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if probe.returncode == 0:
            return (path,)
        tried.append(path)
    found = f"{', '.join(tried)} cannot compile it" if tried else "none was found"
    raise ToolchainError(
        f"emulating CUDA needs a C++17 compiler; {found}", remedy="install g++ (apt install g++), or set CXX"
    )


@functools.lru_cache(maxsize=1)
def _identity() -> tuple[str, bool]:
    """Return (text that identifies compiler and machine, True if the compiler is clang)."""
    text = subprocess.run([*compiler(), "--version"], capture_output=True, text=True, check=False).stdout
    return f"{text}{platform.machine()}{_native()}", "clang" in text


@functools.lru_cache(maxsize=1)
def _native() -> tuple[str, ...]:
    """Return the compiler's flags for half precision, if the machine has the instructions."""
    with contextlib.suppress(OSError):
        if platform.machine() == "x86_64" and re.search(r"\bf16c\b", Path("/proc/cpuinfo").read_text(encoding="utf-8")):
            return ("-mf16c",)
    return ()


@functools.lru_cache(maxsize=1)
def _runtime_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted(RUNTIME.rglob("*")):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _folder() -> Path:
    """Return the cache, or where somebody else can write to it, or nobody can, this process's temporary folder."""
    try:
        private_folder(cache_folder())
        return private_folder(cache_folder() / "emulate")
    except RollerError:
        return temporary_folder()


def _run(command: Sequence[str], what: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ToolchainError(f"{what}: the C++ compiler took longer than {_LIMIT_S:g} s") from None
    except OSError as err:
        raise ToolchainError(f"{what}: {err}") from None
    return "" if done.returncode == 0 else done.stderr or done.stdout or f"exit code {done.returncode}"


def _made(key: str, commands: Sequence[Sequence[str]], sources: dict[str, str], what: str) -> Path:
    """Return the library of a key, from the cache or made by the commands ({out} in them is its path)."""
    library = _folder() / f"{key}.so"
    if library.exists() and not written_by_others(library):
        with contextlib.suppress(OSError):
            os.utime(library)
        return library
    with work_folder() as work:
        for name, text in sources.items():
            (Path(work) / name).write_text(text, encoding="utf-8")
        made = Path(work, "made.so")
        for command in commands:
            log = _run([c.replace("{work}", work).replace("{out}", str(made)) for c in command], what)
            if log:
                check_space()
                raise _refused(log, what)
        _keep(made, library)
    return library


def _keep(made: Path, library: Path) -> None:
    """Put a library into the cache, whole or not at all."""
    handle, name = tempfile.mkstemp(dir=library.parent, prefix=TEMPORARY)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(made.read_bytes())
        os.replace(name, library)
    except OSError as error:
        raise cannot_write(error, library.parent, other="set XDG_CACHE_HOME to another folder") from error
    finally:
        Path(name).unlink(missing_ok=True)
    _prune(library.parent)


def _prune(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for left in folder.glob(f"{TEMPORARY}*"):  # of a process that was killed
            if time.time() - left.stat().st_mtime > _LIMIT_S:
                left.unlink(missing_ok=True)
        for pattern, most in (("kernels-*.so", _KEPT), ("header-*.gch", _KEPT_HEADERS)):
            found = list(folder.glob(pattern))
            if len(found) > most:
                for old in sorted(found, key=lambda p: p.stat().st_mtime)[: len(found) // 2]:
                    old.unlink(missing_ok=True)


def _refused(log: str, what: str) -> Exception:
    lines = [line for line in log.splitlines() if "error" in line][:_LOG_LINES] or log.splitlines()[:_LOG_LINES]
    unknown = re.search(r"['‘](\w+)['’] (?:was not declared|has not been declared|does not name a type)", log)
    refused = re.search(r"types of (cuda_\w+\.h) are not emulated", log)
    if refused:
        return NotEmulated(f"{refused[1]}: its types are not emulated", where=what)
    if unknown:
        return NotEmulated(f"{unknown[1]!r} is not known to the emulator\n" + "\n".join(lines), where=what)
    return NotEmulated("the C++ compiler refused the source:\n" + "\n".join(lines), where=what)


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]


def runtime_library() -> Path:
    """Build the emulator's library, or take it from the cache; return its path."""
    key = "runtime-" + _digest(_identity()[0], _runtime_hash(), _COMMON)
    sources = [str(RUNTIME / part) for part in _PARTS]
    flags = [*_COMMON, *_native(), "-O2", "-w", "-shared", "-Wl,-Bsymbolic"]
    return _made(key, [[*compiler(), *flags, *sources, "-o", "{out}", "-ldl"]], {}, "the emulator")


def kernel_library(source: CudaSource, checked: bool = True, arch: str = "sm_90") -> Path:
    """Build the kernels of a source, linked with the emulator; return the library's path.

    Parameters
    ----------
    checked : bool
        True to check every access to memory. If False, a kernel runs several times faster, and only barriers are
        checked.
    arch : str
        Architecture in ``__CUDA_ARCH__``.
    """
    runtime = runtime_library()
    identity, clang = _identity()
    number = re.search(r"\d+", arch)
    flags = [*_COMMON, *_native(), "-O1", "-w", "-I", str(RUNTIME / "include")]
    if checked:
        flags += [*_CHECKED, *(_CLANG_CHECKED if clang else _GCC_CHECKED)]
    flags += ["-include", str(HEADER if clang else _compiled_header(_folder(), tuple(flags)))]
    # After the header, which is compiled once for all architectures.
    text = f"#define __CUDA_ARCH__ {int(number.group()) * 10 if number else 900}\n#line 1\n{translated(source.text)}"
    calls = "".join(
        f'extern "C" void emu_call_{k.name}(void** a) {{ emu_::call(&{k.name}, a); }}\n' for k in source.kernels
    )
    commands = [
        [*compiler(), *flags, "-x", "c++", "-c", "{work}/kernel.cu", "-o", "{work}/kernel.o"],
        [*compiler(), "-shared", "-Wl,-Bsymbolic", "{work}/kernel.o", str(runtime), "-o", "{out}"],
    ]
    key = "kernels-" + _digest(identity, _runtime_hash(), commands, text)
    return _made(key, commands, {"kernel.cu": f"{text}\n{calls}"}, "the kernels")


@functools.cache
def _compiled_header(folder: Path, flags: tuple[str, ...]) -> Path:
    """Return a header beside which GCC finds it compiled for these flags; if it cannot be compiled, the plain one."""
    key = "header-" + _digest(_identity()[0], _runtime_hash(), HEADER, flags)
    header, compiled = folder / f"{key}.h", folder / f"{key}.h.gch"
    if not (compiled.exists() and header.exists()) or written_by_others(compiled) or written_by_others(header):
        with work_folder() as work:
            text, made = Path(work, "made.h"), Path(work, "made.h.gch")
            text.write_text(f'#include "{HEADER}"\n', encoding="utf-8")
            if _run([*compiler(), *flags, "-x", "c++-header", str(text), "-o", str(made)], "the emulator's header"):
                return HEADER
            _keep(text, header)
            _keep(made, compiled)
    return header


@functools.lru_cache(maxsize=1)
def load_runtime() -> ctypes.CDLL:
    """Load the emulator's library."""
    return ctypes.CDLL(str(runtime_library()))


def line_of(library: Path, offset: int) -> int:
    """Return the line of the CUDA source for an address in the library; 0 if it is unknown."""
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if not tool or not offset:
        return 0
    done = subprocess.run([tool, "-i", "-e", str(library), hex(offset)], capture_output=True, text=True, check=False)
    found = re.search(r"kernel\.cu:(\d+)", done.stdout)
    return int(found.group(1)) if found else 0
