"""Two ways of building that a seed chooses by its last bits, beside the ordinary one.

Eager: what a prediction prefers for large models alone is made of small ones too, wherever it applies: products on the
matrix unit, calls as one kernel, axes merged, Winograd's algorithm. Cached: plans, schedules and kernels of the models
before are taken from the caches, and new ones are made in forks.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from roller_tvm.disk_cache import VARIABLE
from roller_tvm.tvm_env import line

#: Modules whose GAIN says how much faster something must be predicted, by line.
PREDICTED = {"relax": ("connected", "merged", "matrix_products", "layout_cost")}


@dataclass(frozen=True)
class Ways:
    """How a model is built.

    Examples
    --------
    >>> Ways.of_seed(6)
    Ways(eager=False, cached=True)
    """

    eager: bool = False
    cached: bool = False

    @classmethod
    def of_seed(cls, seed: int) -> Ways:
        """Return the ways of a seed: each of the four for every fourth."""
        return cls(bool(seed & 1), bool(seed & 2))

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Within the context this process builds so."""
        here = line() or ""
        modules = [importlib.import_module(f"roller_tvm.{here}.{name}") for name in PREDICTED.get(here, ())]
        before = [vars(module)["GAIN"] for module in modules], os.environ.get(VARIABLE)
        try:
            for module in modules if self.eager else ():
                vars(module)["GAIN"] = 0.0
            os.environ[VARIABLE] = "on" if self.cached else "off"
            yield
        finally:
            for module, gain in zip(modules, before[0], strict=True):
                vars(module)["GAIN"] = gain
            os.environ.pop(VARIABLE)
            if before[1] is not None:
                os.environ[VARIABLE] = before[1]


PLAINLY = Ways()
