"""The C++ compiler of this machine that TVM links libraries with."""

from __future__ import annotations

import os
import shutil
import warnings
from functools import cache

from roller_tvm.errors import ToolchainError

# In TVM's order (tvm.contrib.cc, tvm.support.cc).
NAMES = ("g++", "gcc", "clang++", "clang", "c++", "cc")
VARIABLES = ("CXX", "CC")


def find_compiler() -> str | None:
    """Return the path of the compiler, or None. $CXX, then $CC, goes before every other name, as for TVM."""
    chosen = _chosen()
    return next(filter(None, map(shutil.which, [os.environ[chosen]] if chosen else NAMES)), None)


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
