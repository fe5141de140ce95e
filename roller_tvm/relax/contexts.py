"""PassContexts of TVM with the settings of another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm


def context_like(
    context: Any, instruments: Sequence[Any] = (), disabled: Sequence[str] = (), /, **config: Any
) -> Any:
    """Return a PassContext with the settings of another, but instruments of its own.

    Parameters
    ----------
    disabled : sequence of str
        Passes that do not run, beside those that the other context disables.
    config
        Settings where the other has none.

    Examples
    --------
    >>> with context_like(tvm.transform.PassContext.current()):
    ...     mod = some_pass(mod)
    """
    return tvm.transform.PassContext(
        opt_level=context.opt_level, config={**config, **dict(context.config)}, instruments=list(instruments),
        required_pass=[str(name) for name in context.required_pass],
        disabled_pass=[*map(str, context.disabled_pass), *disabled],
    )  # fmt: skip
