"""Pairs of apache-tvm-ffi and apache-tvm that work together: pip takes the newest, and the newest crashes.

Found by running each pair: `tvm.ir.save_json` and MetaSchedule end in a segmentation fault, or libtvm does not load.
"""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass
from functools import lru_cache

from roller_tvm import errors

DISTRIBUTION = "apache-tvm-ffi"


@dataclass(frozen=True)
class Pair:
    """For one minor version of apache-tvm: the ffi that was run with it, the first that fails, and how it fails."""

    works: str
    fails_from: tuple[int, ...]
    how: str

    @property
    def remedy(self) -> str:
        """The command that mends a bad pair."""
        return f"pip install {DISTRIBUTION}=={self.works}"


_CRASH = "save_json and MetaSchedule crash with it (segmentation fault)"
PAIRS: dict[tuple[int, ...], Pair] = {
    (0, 25): Pair("0.1.12", (0, 1, 13), "libtvm_runtime.so does not load with it (undefined symbol)"),
    (0, 26): Pair("0.1.14.post1", (0, 1, 15), _CRASH),
    (0, 27): Pair("0.1.14.post1", (0, 1, 15), _CRASH),
}


def numbers(version: str) -> tuple[int, ...]:
    """Return the release of a version as numbers, what follows left out.

    Examples
    --------
    >>> numbers("0.1.14.post1"), numbers("0.17.dev0"), numbers("unknown")
    ((0, 1, 14), (0, 17), ())
    """
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


@lru_cache(maxsize=8)
def version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_ffi() -> str | None:
    """Return the version of apache-tvm-ffi here, or None."""
    return version_of(DISTRIBUTION)


def pair_of(tvm: str) -> Pair | None:
    """Return the known pair of an apache-tvm version; None if it was not tried."""
    return PAIRS.get(numbers(tvm)[:2])


def bad_pair(tvm: str, ffi: str | None) -> Pair | None:
    """The pair that should be there, if this one is known to fail.

    Examples
    --------
    >>> bad_pair("0.27.0.post1", "0.1.15").remedy
    'pip install apache-tvm-ffi==0.1.14.post1'
    >>> bad_pair("0.27.0.post1", "0.1.14.post1") is None
    True
    """
    pair = pair_of(tvm)
    if pair is None or ffi is None or numbers(ffi) < pair.fails_from:
        return None
    return pair


def register_errors() -> None:
    """Let our errors stay what they are where they pass through TVM: raised in a pass written in Python, say.

    Unregistered ones come back as RuntimeError, and the command would not know them.
    """
    from tvm_ffi import register_error

    for cls in vars(errors).values():
        if isinstance(cls, type) and issubclass(cls, errors.RollerError):
            register_error(cls.__name__, cls)
