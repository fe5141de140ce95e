"""TVM's kernel of an untuned function: on a CPU its own loops, on a GPU dlight's schedules."""

from __future__ import annotations

import time
from typing import Any

from roller_tvm.compare.keeping import build_seconds
from roller_tvm.compare.opened import DEFAULT
from roller_tvm.compare.relax.kernels import build_module, kernel_file, open_reference
from roller_tvm.compare.relax.tasks import Opened


def tune(opened: Opened, trials: int) -> dict[str, Any]:
    """Build the default kernel; return the fields of ``results.Tuned``. The check is not counted."""
    import tvm

    from roller_tvm.relax.reference import default_module

    start = time.perf_counter()
    text = str(tvm.ir.save_json(default_module(opened.mod, opened.target)))
    scheduled = time.perf_counter() - start
    open_reference(opened.key, opened.text, opened.target, opened.constants, opened.kernels)
    path = build_module(opened.key, text, kernel_file(opened.kernels, opened.key, f"default {text}"))
    return opened.found(path, scheduled + build_seconds(path), schedule=DEFAULT)
