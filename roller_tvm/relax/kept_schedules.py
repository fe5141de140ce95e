"""Scheduled functions kept for the next build: planned and applied once a machine (`codegen/kernel_cache.py`)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import tvm
from tvm_ffi.serialization import from_json_graph_str

from .. import foreign
from ..codegen.kernel_cache import kernel_cache, key_of
from ..device import DeviceSpec
from .structures import Function


@dataclass(frozen=True)
class KeptSchedule:
    """The place of one function's schedule.

    Parameters
    ----------
    key : str
        '' if nothing is kept of it.

    Examples
    --------
    >>> kept = KeptSchedule.of(Function(func), device, "llvm", 4, False)
    >>> if (known := kept.read()) is not None:
    ...     scheduled, words = known
    """

    key: str = ""

    @classmethod
    def of(cls, function: Function, device: DeviceSpec, target: str, *options: Any) -> KeptSchedule:
        """Return the place of a function; a GPU's plans depend on the compiler of its kernels too."""
        if kernel_cache() is None or device.kind != "cpu":
            return cls()
        return cls(key_of("schedule", function.text, device.name, device.digest(), target, *options))

    def read(self) -> tuple[Any, dict[str, Any]] | None:
        """Return the scheduled function, and the words about it; None if it is not there."""
        cache = kernel_cache()
        if cache is None or not self.key or (kept := cache.get(self.key)) is None:
            return None
        words, _, func = kept.decode().partition("\n")
        # This TVM wrote it: nothing of an older one is to be upgraded, which takes most of `tvm.ir.load_json`.
        return from_json_graph_str(func), foreign.loads(words)

    def write(self, func: Any, words: dict[str, Any]) -> None:
        """Keep a scheduled function, and words about it."""
        if (cache := kernel_cache()) is not None and self.key:
            cache.put(self.key, f"{json.dumps(words)}\n{tvm.ir.save_json(func)}".encode())
