"""Contexts that apply records: TVM's, which here read past a line that is no record, and say so."""

# ruff: noqa: F403
from __future__ import annotations

import os
from typing import Any

from tvm.auto_scheduler import dispatcher as _ansor
from tvm.auto_scheduler.dispatcher import *

from roller_tvm.relay.records import load_for_build
from roller_tvm.relay.vector_math import VectorMath
from roller_tvm.relay.wide_indices import WideIndices


def _read(records: Any) -> Any:
    """Records of files, those given as they are left alone."""
    if isinstance(records, (str, os.PathLike)):
        records = [records]
    if not isinstance(records, (list, tuple)):
        return records
    read: list[Any] = []
    for record in records:
        is_file = isinstance(record, (str, os.PathLike)) and os.path.exists(record)
        read += load_for_build(record) if is_file else [record]
    return read


class ApplyHistoryBest(_ansor.ApplyHistoryBest):  # type: ignore[misc]
    """Applies the best record of each task; as TVM's, but a half-written line does not end the script.

    Kernels that are built for CPUs meanwhile compute exp, erf and tanh with arithmetic (``relay.vector_math``) and
    addresses in 64 bits (``relay.wide_indices``); with `vector_math` False they call the mathematics library, with
    `wide_indices` False they compute addresses in 32 bits, as TVM's do.

    Examples
    --------
    >>> with ApplyHistoryBest("records.json"):  # doctest: +SKIP
    ...     lib = relay.build(mod, target, params=params)
    """

    def __init__(
        self, records: Any, n_lines: int | None = None, include_compatible: bool = False, vector_math: bool = True,
        wide_indices: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(records, n_lines, include_compatible)
        self._code = VectorMath(vector_math), WideIndices(wide_indices)

    def __enter__(self) -> Any:
        entered = super().__enter__()
        for way in self._code:
            way.__enter__()
        return entered

    def __exit__(self, *error: object) -> None:
        try:
            super().__exit__(*error)
        finally:
            for way in self._code:
                way.__exit__(*error)

    def load(self, records: Any, n_lines: int | None = None) -> None:
        super().load(_read(records), n_lines)


class ApplyHistoryBestOrSample(_ansor.ApplyHistoryBestOrSample):  # type: ignore[misc]
    """As TVM's, reading files as ``ApplyHistoryBest`` here does."""

    def load(self, records: Any, n_lines: int | None = None) -> None:
        super().load(_read(records), n_lines)


def __getattr__(name: str) -> Any:
    return getattr(_ansor, name)
