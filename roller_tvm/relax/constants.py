"""Constants of a Relax module, which TVM 0.27 moved and renamed."""

from __future__ import annotations

from typing import Any

import numpy as np

_NAMES = ("GenericConst", "Constant")


def _tensor(node: Any) -> Any:
    if type(node).__name__ not in _NAMES:
        return None
    value = getattr(node, "value", None)
    value = getattr(node, "data", None) if value is None else value
    return value if hasattr(value, "numpy") else None


def is_constant(node: Any) -> bool:
    """True for a tensor whose values are known."""
    return _tensor(node) is not None


def array_of(node: Any) -> Any:
    """The values of a constant as a numpy array, or None if it is none."""
    value = _tensor(node)
    return None if value is None else np.asarray(value.numpy())
