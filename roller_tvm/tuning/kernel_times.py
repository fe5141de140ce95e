"""Times of a built model's kernels, observed call by call over several runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

#: Largest width of the tensors' column, in characters.
WIDE = 72


@dataclass(frozen=True)
class Call:
    """One call of a kernel: its name, its tensors as text (`tensor_words`), and its seconds."""

    name: str
    arguments: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class KernelTime:
    """A kernel's part of a run.

    Parameters
    ----------
    name : str
    arguments : tuple of str
        Tensors of the kernel, outputs last; calls with other shapes are another row.
    calls : int
        Calls in one run; the most, if runs differ.
    seconds : float
        Time of all these calls together in seconds, as a median over the runs.

    Examples
    --------
    >>> runs = [[Call("conv", ("1x3x8x8",), 2e-6), Call("relu", ("1x3x8x8",), 1e-6)]] * 3
    >>> [(row.name, row.calls, row.seconds) for row in kernel_times(runs)]
    [('conv', 1, 2e-06), ('relu', 1, 1e-06)]
    """

    name: str
    arguments: tuple[str, ...]
    calls: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


def kernel_times(runs: Sequence[Iterable[Call]]) -> list[KernelTime]:
    """Return the kernels of a model, the slowest first; a kernel that a run did not call took no time in it."""
    found: list[dict[tuple[str, tuple[str, ...]], list[float]]] = []
    for run in runs:
        own: dict[tuple[str, tuple[str, ...]], list[float]] = defaultdict(list)
        for call in run:
            own[call.name, call.arguments].append(call.seconds)
        found.append(own)
    rows = [
        KernelTime(*key, max(len(own.get(key, ())) for own in found), median(sum(own.get(key, ())) for own in found))
        for key in dict.fromkeys(key for own in found for key in own)
    ]
    return sorted(rows, key=lambda row: -row.seconds)


def kernel_table(rows: Sequence[KernelTime]) -> str:
    """Return the rows as text: time, share, cumulative share, calls, name and tensors.

    Examples
    --------
    >>> print(kernel_table([KernelTime("conv", ("1x8", "1x4"), 2, 3e-6), KernelTime("relu", ("1x4", "1x4"), 1, 1e-6)]))
          us  share     all  calls  kernel  tensors
         3.0  75.0%   75.0%      2  conv    1x8, 1x4
         1.0  25.0%  100.0%      1  relu    1x4, 1x4
         4.0                     3  in kernels
    """
    total = sum(row.seconds for row in rows) or 1.0
    wide = max([6, *(len(row.name) for row in rows)])
    lines, so_far = [f"{'us':>8}  {'share':>5}  {'all':>6}  {'calls':>5}  {'kernel':{wide}}  tensors"], 0.0
    for row in rows:
        so_far += row.seconds
        tensors = ", ".join(row.arguments)
        if len(tensors) > WIDE:
            tensors = tensors[: WIDE - 3] + "..."
        us, share, every = row.seconds * 1e6, row.seconds / total, so_far / total
        lines.append(f"{us:8.1f}  {share:5.1%}  {every:6.1%}  {row.calls:5}  {row.name:{wide}}  {tensors}".rstrip())
    whole = sum(row.seconds for row in rows) * 1e6
    lines.append(f"{whole:8.1f}  {'':5}  {'':6}  {sum(row.calls for row in rows):5}  in kernels")
    return "\n".join(lines)


def tensor_words(shape: Iterable[int], dtype: str) -> str:
    """Return a short text for a tensor.

    Examples
    --------
    >>> tensor_words((1, 64), "float32"), tensor_words((), "int64")
    ('1x64', 'scalar int64')
    """
    words = "x".join(str(int(e)) for e in shape) or "scalar"
    return words if dtype == "float32" else f"{words} {dtype}"
