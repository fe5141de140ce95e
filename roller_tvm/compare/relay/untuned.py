"""What TVM builds of an operator that nobody tuned."""

from __future__ import annotations

from typing import Any

from roller_tvm.compare.keeping import build_seconds
from roller_tvm.compare.opened import DEFAULT
from roller_tvm.compare.relay.kernels import build_default
from roller_tvm.compare.relay.tasks import Opened
from roller_tvm.errors import UnsupportedOperator


def tune(opened: Opened, trials: int) -> dict[str, Any]:
    """The default kernel; its check is not counted."""
    if not opened.default:
        raise UnsupportedOperator("TVM has no single kernel for it", opened.case.id)
    path = build_default(opened.key, opened.dag, opened.target, opened.default, opened.kernels)
    return opened.found(path, build_seconds(path), schedule=DEFAULT)
