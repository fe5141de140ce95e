"""Silences AutoTVM's warning about each operator without a record."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def silent_autotvm() -> Iterator[None]:
    """Silence AutoTVM while this is open."""
    from tvm import autotvm

    silent, autotvm.GLOBAL_SCOPE.silent = autotvm.GLOBAL_SCOPE.silent, True
    try:
        yield
    finally:
        autotvm.GLOBAL_SCOPE.silent = silent
