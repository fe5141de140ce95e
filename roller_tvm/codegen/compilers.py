"""Find the CUDA compilers of this machine: NVRTC (a library on PyPI) and nvcc (a program on PATH)."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

NVRTC_REMEDY = "pip install nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12"

# Folders below the namespace package `nvidia`: the wheels of CUDA 12 have one per part, those of 13 one for all.
_WHEEL_NVRTC = ("cuda_nvrtc", "cu13")
_WHEEL_RUNTIME = ("cuda_runtime", "cu13")


@dataclass(frozen=True)
class Compiler:
    """A CUDA compiler."""

    name: str  # ``nvrtc`` or ``nvcc``
    version: tuple[int, int]  # major and minor version
    path: str  # path of the library or program
    archs: tuple[str, ...]  # architectures that it compiles for, without suffixed ones (``sm_90a``); () if unknown

    def __post_init__(self) -> None:
        if self.name not in ("nvrtc", "nvcc"):
            raise ValueError(f"'name' must be nvrtc or nvcc (got {self.name!r})")

    def __str__(self) -> str:
        span = f", {self.archs[0]} to {self.archs[-1]}" if self.archs else ""
        return f"{self.name} {self.version[0]}.{self.version[1]} ({self.path}){span}"

    def supports(self, arch: str) -> bool:
        """Return True if the compiler can make a cubin for `arch`; if its architectures are unknown, True.

        Examples
        --------
        >>> Compiler("nvcc", (13, 0), "nvcc", ("sm_75", "sm_90")).supports("sm_90a")
        True
        >>> Compiler("nvcc", (13, 0), "nvcc", ("sm_75", "sm_90")).supports("sm_70")
        False
        """
        return not self.archs or arch.rstrip("af") in self.archs


@functools.cache
def find_compilers() -> tuple[Compiler, ...]:
    """Return the CUDA compilers found, the quicker first.

    NVRTC starts no process and reads no host headers, so it takes a third of nvcc's time for one kernel.

    Examples
    --------
    >>> all(c.name in ("nvrtc", "nvcc") for c in find_compilers())
    True
    """
    return tuple(c for c in (_find_nvrtc(), _find_nvcc()) if c is not None)


def _wheel_folders(parts: tuple[str, ...], below: str) -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or []) if spec else []
    return [p for root in roots for part in parts if (p := Path(root, part, below)).is_dir()]


def _find_nvrtc() -> Compiler | None:
    for candidate in _nvrtc_candidates():
        try:
            library = nvrtc_library(candidate)
        except OSError:
            continue
        major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        archs = (ctypes.c_int * count.value)()
        library.nvrtcGetSupportedArchs(archs)
        names = tuple(f"sm_{a}" for a in sorted(set(archs)))
        return Compiler("nvrtc", (major.value, minor.value), candidate, names)
    return None


def _nvrtc_candidates() -> list[str]:
    found = [str(p) for folder in _wheel_folders(_WHEEL_NVRTC, "lib") for p in folder.glob("libnvrtc.so.*")]
    system = ctypes.util.find_library("nvrtc")
    return found + ([system] if system else []) + ["libnvrtc.so.12", "libnvrtc.so.13"]


@functools.cache
def nvrtc_library(path: str) -> ctypes.CDLL:
    """Load the NVRTC library at a path; raises OSError if it cannot be loaded."""
    return ctypes.CDLL(path)


def _find_nvcc() -> Compiler | None:
    path = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if path is None:
        return None
    try:
        told = _output([path, "--version"])
        archs = _output([path, "--list-gpu-code"])
    except (OSError, subprocess.SubprocessError):
        return None  # on PATH and broken: as good as absent
    release = re.search(r"release (\d+)\.(\d+)", told)
    if release is None:
        return None
    names = sorted(set(re.findall(r"sm_\d+", archs)), key=lambda name: int(name[3:]))
    return Compiler("nvcc", (int(release[1]), int(release[2])), path, tuple(names))


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@functools.cache
def include_folders() -> tuple[str, ...]:
    """Return the folder with CUDA's device headers for NVRTC, as a tuple of one path; () if there is none.

    NVRTC itself brings no device headers.
    """
    folders = _wheel_folders(_WHEEL_RUNTIME, "include")
    folders += [Path(root, "include") for v in ("CUDA_HOME", "CUDA_PATH") if (root := os.environ.get(v))]
    nvcc = shutil.which("nvcc")
    if nvcc:
        folders.append(Path(nvcc).resolve().parent.parent / "include")
    folders.append(Path("/usr/local/cuda/include"))
    # The first that has them, alone: headers of two releases must not be mixed.
    return tuple(str(f) for f in folders if (f / "cuda_fp16.h").is_file())[:1]
