"""The C++ compiler that TVM links libraries with, this machine's or one for another architecture."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import warnings
from collections.abc import Iterator
from functools import cache

from roller_tvm.device.cpu_detect import machine_named
from roller_tvm.errors import ToolchainError
from roller_tvm.folders import variable

# In TVM's order (tvm.contrib.cc, tvm.support.cc).
NAMES = ("g++", "gcc", "clang++", "clang", "c++", "cc")
VARIABLES = ("CXX", "CC")


def find_compiler() -> str | None:
    """Return the path of the compiler, or None. $CXX, then $CC, goes before every other name, as for TVM."""
    chosen = _chosen()
    return next(filter(None, map(shutil.which, [os.environ[chosen]] if chosen else NAMES)), None)


def architecture(triple: str) -> str:
    """Return LLVM's name of a triple's architecture.

    Examples
    --------
    >>> architecture("arm64-apple-darwin"), architecture("x86_64-linux-gnu")
    ('aarch64', 'x86-64')
    """
    return machine_named(triple.split("-")[0])


def is_foreign(triple: str) -> bool:
    """Return whether code for a triple is for another architecture than this machine's; '' is this one."""
    return bool(triple) and architecture(triple) != machine_named(platform.machine())


def cross_compiler(triple: str, language: str = "g++") -> str:
    """Return the compiler, of Debian's names, for a machine of another architecture.

    Raises
    ------
    ToolchainError
        There is none.
    """
    machine = architecture(triple)
    names = [f"{triple}-{language}", f"{machine.replace('-', '_')}-linux-gnu-{language}"]
    found = next((name for name in names if shutil.which(name)), None)
    if found is None:
        remedy = system_install(f"{language}-{machine}-linux-gnu")
        raise ToolchainError(f"there is no compiler for {triple}", "linking", remedy)
    return found


@contextlib.contextmanager
def linking_for(triple: str) -> Iterator[None]:
    """Have TVM link for the machine of a triple while this is open."""
    with variable("CXX", cross_compiler(triple)) if is_foreign(triple) else contextlib.nullcontext():
        yield


@cache
def tell_of_no_compiler() -> None:
    """Warn, once a process, that kernels stay in memory."""
    told = "there is no C++ compiler: the model can be run in this process and not saved, and nothing is kept of it"
    warnings.warn(f"{told}\n  remedy: {system_install('g++')}", RuntimeWarning, stacklevel=3)


def require_compiler(where: str) -> None:
    """Raise `ToolchainError` if there is no compiler to link the library `where` with."""
    if find_compiler() is not None:
        return
    if chosen := _chosen():
        what = f"the library cannot be linked: {chosen}={os.environ[chosen]} is no program"
        raise ToolchainError(what, where, f"unset {chosen}, or set it to a C++ compiler")
    raise ToolchainError("the library cannot be linked: there is no C++ compiler", where, system_install("g++"))


def system_install(package: str) -> str:
    """Return the command that installs a package of the system."""
    root = "" if hasattr(os, "geteuid") and os.geteuid() == 0 else "sudo "
    for manager, word in (("apt-get", "install -y"), ("dnf", "install -y"), ("apk", "add")):
        if shutil.which(manager):
            name = "gcc-c++" if manager == "dnf" and package == "g++" else package
            return f"{root}{manager} {word} {name}"
    return f"install {package} with the system's package manager"


def _chosen() -> str:
    """Return the name of the environment variable that names the compiler, or ''."""
    return next((name for name in VARIABLES if os.environ.get(name)), "")
