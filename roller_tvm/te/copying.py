"""A check for both of TVM's lines: is a value an element exactly as it stands in memory?"""

from __future__ import annotations

from typing import Any


def copies(value: Any) -> bool:
    """Return whether an expression only chooses between elements and constants (padding, slices), and so rounds
    nothing.

    Parameters
    ----------
    value : PrimExpr

    Examples
    --------
    >>> from tvm import te
    >>> a = te.placeholder((4,), "float16")
    >>> [copies(te.compute((4,), f).op.body[0]) for f in (lambda i: a[i], lambda i: a[i] + a[0])]
    [True, False]
    """
    kind = type(value).__name__
    if kind in ("ProducerLoad", "BufferLoad", "TensorLoad", "FloatImm", "IntImm"):
        return True
    if kind == "Select":
        return copies(value.true_value) and copies(value.false_value)
    if kind == "Call" and str(getattr(value.op, "name", "")).endswith("if_then_else"):
        return all(copies(argument) for argument in list(value.args)[1:])
    return False
