"""A worker that checks kernels of a library on a GPU. It needs TVM's runtime, no compiler.

After an error the device is of no more use to its process, which ends then; the pool starts another.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import tvm

from ..tuning import linked, worker
from .cubins import Cubins

MODULE = "roller_tvm.relax.device_check"


@lru_cache(maxsize=1)
def _library(path: str, cubins: Cubins) -> Any:
    with cubins.used():
        return tvm.runtime.load_module(path)


def check_on_device(library: str, cubins: Cubins, answers: str, kernels: Sequence[str]) -> list[str]:
    """Return for each kernel why its results are not right, or ''."""
    right, device = linked.Answers.load(Path(answers)), tvm.cuda(0)
    try:
        module = _library(library, cubins)

        def function(name: str) -> Any:
            run = module.get_function(name, query_imports=True)

            def call(*arguments: Any) -> None:
                run(*arguments)
                device.sync()

            return call

        return [
            linked.wrong(function(name), linked.LinkedKernel(name), right, lambda v: tvm.runtime.tensor(v, device))
            for name in kernels
        ]
    except Exception:  # an error of the device, as TVM raises it
        traceback.print_exc()
        os._exit(1)


def hello() -> int:
    """Return the number of the process; there is nothing to prepare."""
    return os.getpid()


FUNCTIONS = {f.__name__: f for f in (hello, check_on_device)}

if __name__ == "__main__":
    worker.serve(FUNCTIONS)
