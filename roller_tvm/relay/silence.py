"""AutoTVM says of every operator without a record that it has none; here that is no news."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def silent_autotvm() -> Iterator[None]:
    """Within it AutoTVM says nothing."""
    from tvm import autotvm

    silent, autotvm.GLOBAL_SCOPE.silent = autotvm.GLOBAL_SCOPE.silent, True
    try:
        yield
    finally:
        autotvm.GLOBAL_SCOPE.silent = silent
