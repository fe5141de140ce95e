"""A torch module opened for timing, as it is or compiled by torch; an environment with torch runs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from roller_bench.running import Running


def arrays_of(result: Any) -> list[np.ndarray]:
    """Return the tensors that a module returned, one or several, as arrays."""
    return [one.numpy() for one in (result if isinstance(result, (tuple, list)) else (result,))]


def opened_module(
    made: Callable[[], tuple[Any, Sequence[Any]]], threads: int, compiled: bool = False,
    arrays: Callable[[Any], list[np.ndarray]] = arrays_of,
) -> Running:  # fmt: skip
    """Open a torch module.

    Parameters
    ----------
    made : function
        Returns the module in evaluation mode and its arguments. It may import torch, which is set up before.
    threads : int
    compiled : bool
        Compile it by torch, its weights frozen.
    arrays : function
        Makes arrays of what the module returns.
    """
    os.environ.setdefault("OMP_PROC_BIND", "true")  # read when torch is loaded
    import torch

    torch.set_num_threads(threads)
    module, given = made()
    if compiled:
        import torch._inductor.config

        torch._inductor.config.freezing = True
        module = torch.compile(module)

    def run() -> Any:
        with torch.no_grad():
            return module(*given)

    return Running(run, lambda: arrays(run()))
