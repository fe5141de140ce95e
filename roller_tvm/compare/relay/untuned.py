"""What TVM builds of an operator that nobody tuned."""

from __future__ import annotations

import time
from typing import Any

from roller_tvm.compare.relay.kernels import build_default, why_wrong
from roller_tvm.compare.relay.tasks import Opened
from roller_tvm.errors import UnsupportedOperator


def tune(opened: Opened, trials: int) -> dict[str, Any]:
    """The default kernel, built."""
    if not opened.default:
        raise UnsupportedOperator("TVM has no single kernel for it", opened.case.id)
    start = time.perf_counter()
    path = build_default(opened.key, opened.dag, opened.target, opened.default, opened.kernels)
    wrong = why_wrong(path)
    return {
        "status": "wrong answer" if wrong else "ok", "reason": wrong, "seconds": time.perf_counter() - start,
        "kernel": opened.told(path), "schedule": "TVM's default",
    }  # fmt: skip
