"""Scheduled functions, answers about functions and object files that a build keeps for the next one (no TVM).

Beside the plans, in a file of its own of the same kind (`disk_cache.py`). A key is the digest of all that decides the
value; of this package and of TVM, the code itself is part of it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from .. import foreign
from ..disk_cache import DiskCache, code_version, is_off
from ..folders import cache_folder

#: Size of the file, bytes: some ten thousand kernels.
KERNELS_BYTES = 256 * 2**20


def kernel_cache() -> DiskCache | None:
    """Return this user's cache, or None if $ROLLER_PLAN_CACHE says "off"."""
    return None if is_off() else cache_in(cache_folder())


@lru_cache(maxsize=8)
def cache_in(folder: Path) -> DiskCache:
    """Return the cache in a folder."""
    path, remade = folder / "kernels.sqlite", "kernels are made again"
    return DiskCache(path, "functions and kernels", remade, KERNELS_BYTES, lambda: code_version(""))


def key_of(kind: str, *words: object) -> str:
    """Return the key of something made by the TVM at hand.

    Parameters
    ----------
    kind : str
        What is made.
    *words
        All that decides it, as text.

    Examples
    --------
    >>> key_of("object", "function", "target") == key_of("object", "function", "other target")
    False
    """
    digest = hashlib.sha256()
    for word in (kind, _tvm(), *words):
        text = str(word).encode()
        digest.update(f"{len(text)}:".encode() + text)  # no two lists of words read alike
    return digest.hexdigest()[:32]


def kept_answer(make: Callable[[], Any], kind: str, *words: object) -> Any:
    """Return what a function makes, a value of JSON, of this build or of an earlier one.

    Parameters
    ----------
    make : function
    kind, *words
        As of `key_of`.

    Examples
    --------
    >>> kept_answer(lambda: 1 + 1, "sum", 1, 1)
    2
    """
    if (cache := kernel_cache()) is None:
        return make()
    key = key_of(kind, *words)
    if (kept := cache.get(key)) is not None:
        return foreign.loads(kept.decode())
    made = make()
    cache.put(key, json.dumps(made).encode())
    return made


@lru_cache(maxsize=1)
def _tvm() -> str:
    """Return this TVM in words: its version, size and time of its libraries, which may change; and the CPUs."""
    import tvm

    mapped = {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    places = sorted(path for path in mapped if "libtvm" in os.path.basename(path) and os.path.exists(path))
    files = [(os.path.basename(p), (of := os.stat(p)).st_size, of.st_mtime_ns) for p in places]
    return f"{tvm.__version__} {files} {os.cpu_count()}"
