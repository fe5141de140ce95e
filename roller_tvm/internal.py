"""Bugs of our own, reported as such while the next choice is used. The tests turn the warning into an error."""

from __future__ import annotations

import traceback
import warnings
from pathlib import Path

from roller_tvm.errors import last_line


class InternalError(UserWarning):
    """A bug in Roller cost a plan; the message holds the operator, so that the bug can be seen again."""


def internal_error(error: Exception, doing: str, operator: object) -> str:
    """Warn of a bug with its operator, and return it as one line for tables.

    Parameters
    ----------
    error : Exception
    doing : str
        Step of planning that failed.
    operator : TensorExpression or str
        Operator whose plan is lost.

    Examples
    --------
    >>> with warnings.catch_warnings(record=True) as told:
    ...     warnings.simplefilter("always")
    ...     internal_error(KeyError("k"), "planner", "C[i, j] += A[i, k] * B[k, j]")
    "planner error: KeyError: 'k'"
    >>> print(told[0].message)
    internal error: planner error: KeyError: 'k'
      of: C[i, j] += A[i, k] * B[k, j]
      remedy: the next choice is used; please report this text
    """
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    told = f"{doing} error: {type(error).__name__}: {last_line(error)}{where}"
    text = f"internal error: {told}\n  of: {operator}\n  remedy: the next choice is used; please report this text"
    warnings.warn(text, InternalError, stacklevel=3)
    return told
