"""TVM's contexts that apply records; here they skip a line that is not a record, with a warning."""

# ruff: noqa: F403
from __future__ import annotations

import os
import statistics
from collections.abc import Iterable
from typing import Any

from tvm.auto_scheduler import dispatcher as _ansor
from tvm.auto_scheduler.dispatcher import *

from roller_tvm.relay.records import load_for_build
from roller_tvm.relay.rewrites import cpu_code


def _read(records: Any) -> Any:
    """Read records from the paths among `records`; return anything else unchanged."""
    if isinstance(records, (str, os.PathLike)):
        records = [records]
    if not isinstance(records, Iterable):
        return records
    read: list[Any] = []
    for record in records:
        is_file = isinstance(record, (str, os.PathLike)) and os.path.exists(record)
        read += load_for_build(record) if is_file else [record]
    return read


def _is_file(record: Any) -> bool:
    return isinstance(record, (str, os.PathLike))


class _Exact:
    """Prefer records made for the exact target.

    TVM takes the fastest record of any CPU target (or any GPU target).
    """

    _exact: dict[tuple[str, str], tuple[Any, float]]

    def load(self, records: Any, n_lines: int | None = None) -> None:
        read = _read(records)
        super().load(read, n_lines)  # type: ignore[misc]
        pairs = [r for r in read if not _is_file(r)] if isinstance(read, list) else []
        for given, result in pairs[:n_lines]:
            key = str(given.task.target), str(given.task.workload_key)
            cost = statistics.fmean(float(c) for c in result.costs)
            if result.error_no == 0 and (key not in self._exact or cost < self._exact[key][1]):
                self._exact[key] = given.state, cost

    def _query_inside(self, target: Any, workload_key: str, func_name: str) -> Any:
        exact = self._exact.get((str(target), str(workload_key)))
        if exact is not None:
            return exact[0]
        return super()._query_inside(target, workload_key, func_name)  # type: ignore[misc]

    def update(self, target: Any, workload_key: str, state: Any) -> None:
        self._exact[str(target), str(workload_key)] = state, 0.0
        super().update(target, workload_key, state)  # type: ignore[misc]


class ApplyHistoryBest(_Exact, _ansor.ApplyHistoryBest):  # type: ignore[misc]
    """Apply the best record of each task; as TVM's, but a half-written line does not end the script.

    Kernels built for CPUs inside this context differ from TVM's. Each option can be turned off:

    `vector_math`
        Compute exp, erf and tanh with arithmetic (``relay.VectorMath``), not the mathematics library.
    `wide_indices`
        Compute addresses in 64 bits (``relay.WideIndices``), not 32.
    `stack_tiles`
        Keep register tiles on the stack (``relay.StackTiles``), not in workspaces.
    `prefetch`
        Ask for weights ahead of time (``relay.PrefetchPanels``).
    `edge_vectors`
        Check a vector over an edge once per tile (``relay.EdgeVectors``), not once per lane.

    Examples
    --------
    >>> with ApplyHistoryBest("records.json"):
    ...     lib = relay.build(mod, target, params=params)
    """

    def __init__(
        self, records: Any, n_lines: int | None = None, include_compatible: bool = False, vector_math: bool = True,
        wide_indices: bool = True, stack_tiles: bool = True, prefetch: bool = True,
        edge_vectors: bool = True,
    ) -> None:  # fmt: skip
        self._exact: dict[tuple[str, str], tuple[Any, float]] = {}
        super().__init__(records, n_lines, include_compatible)
        self._code = cpu_code(vector_math, wide_indices, stack_tiles, prefetch, edge_vectors)

    def __enter__(self) -> Any:
        entered = super().__enter__()
        self._code.__enter__()
        return entered

    def __exit__(self, *error: object) -> None:
        try:
            super().__exit__(*error)
        finally:
            self._code.__exit__(*error)


class ApplyHistoryBestOrSample(_Exact, _ansor.ApplyHistoryBestOrSample):  # type: ignore[misc]
    """Apply the best record or sample a schedule, as TVM's; reads files as ``ApplyHistoryBest`` here does."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._exact = {}
        super().__init__(*args, **options)


def __getattr__(name: str) -> Any:
    return getattr(_ansor, name)
