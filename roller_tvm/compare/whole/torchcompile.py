"""``torch.compile`` as an implementation of a whole model, on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roller_tvm.compare.whole import torch as eager
from roller_tvm.compare.whole.running import Arrays, Running


def build(model: dict[str, Any], output: Path, threads: int) -> dict[str, Any]:
    """Build as ``torch.build`` does, compiled."""
    return eager.build(model, output, threads, compiled=True)


def open_model(file: Path, inputs: Arrays, threads: int) -> Running:
    """Open as ``torch.open_model`` does, compiled."""
    return eager.opened(file, inputs, threads, True)
