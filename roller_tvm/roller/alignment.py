"""The four alignment rules of an rTile, and the reasons for rejecting candidates (Roller, section 3.1).

Each rule is a function that returns None if the tile is aligned, else a ``Rejection``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from math import ceil, isqrt
from typing import Any


@dataclass(frozen=True)
class Rejection:
    """Why a candidate is not a plan: the rule, what it requires, the limit, and the remedy."""

    rule: str
    required: str
    limit: str
    remedy: str
    candidate: str = ""

    def __str__(self) -> str:
        text = f"{self.rule}: needs {self.required}, limit {self.limit} ({self.remedy})"
        return f"{self.candidate}: {text}" if self.candidate else text

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def execution_unit(threads: int, vector_width: int, eps: float = 0.0) -> Rejection | None:
    """Rule 1: the parallel extent is a multiple of the warp, wavefront or SIMD width.

    Up to a share `eps` of the lanes may idle: if the lowering cannot pad an axis of prime length, the lanes of the
    last warp are padded instead.

    Examples
    --------
    >>> print(execution_unit(48, 32))
    execution unit: needs 64 lanes for 48 threads, limit 48 * (1 + 0) (use a multiple of 32 threads)
    """
    lanes = ceil(threads / vector_width) * vector_width
    if lanes <= threads * (1 + eps):
        return None
    return Rejection("execution unit", f"{lanes} lanes for {threads} threads", f"{threads} * (1 + {eps:g})",
                     f"use a multiple of {vector_width} threads")


def transaction(run: int, full: bool, transaction_elements: int, eps: float, tensor: str) -> Rejection | None:
    """Rule 2: the innermost extent of a data tile is a multiple of the memory transaction.

    A run of `run` elements wastes part of its last transaction; up to a share `eps` may be wasted. A run that
    is the whole row (``full``) cannot be longer, and passes.
    """
    if full:
        return None
    moved = ceil(run / transaction_elements) * transaction_elements
    if moved <= run * (1 + eps):
        return None
    return Rejection("memory transaction", f"runs of a multiple of {transaction_elements} elements of '{tensor}'",
                     str(run), "grow the innermost axis, or relax eps")


def bank_padding(row: int, fetched: int, banks: int, bank_elements: int) -> int:
    """Rule 3: return how many elements to add to a row of `row` elements, so that rows start in different banks.

    The paper pads to the next row length that is `fetched` more than a multiple of all banks. Any odd multiple of
    `fetched` spreads rows over the banks as well (their number is a power of two). The smallest one is chosen, as it
    costs less memory.

    Parameters
    ----------
    row : int
        Elements of one row of the staged tile (N).
    fetched : int
        Elements read at a time (n).
    banks, bank_elements : int
        B banks of L elements.

    Examples
    --------
    >>> bank_padding(row=32, fetched=1, banks=32, bank_elements=1)
    1
    >>> bank_padding(row=33, fetched=1, banks=32, bank_elements=1)
    0
    >>> bank_padding(row=16, fetched=4, banks=32, bank_elements=1)
    4
    """
    quantum = bank_elements * ceil(fetched / bank_elements)
    if quantum >= banks * bank_elements:
        return 0
    groups = ceil(row / quantum)
    return (groups + (groups % 2 == 0)) * quantum - row


def tensor_shape(extent: int, tile: int, eps: float, axis: str) -> Rejection | None:
    """Rule 4: covering an axis with whole tiles may waste at most a share `eps`.

    Examples
    --------
    >>> tensor_shape(1000, 8, 0.0, "j") is None, tensor_shape(1000, 64, 0.0, "j") is None
    (True, False)
    """
    covered = ceil(extent / tile) * tile
    if covered <= extent * (1 + eps) + 1e-9:
        return None
    return Rejection("tensor shape", f"{covered} iterations of '{axis}'", f"{extent} * (1 + {eps:g})",
                     "use a tile that divides the axis, or relax eps")


def capacity(what: str, required: int, limit: int, remedy: str = "use a smaller tile") -> Rejection | None:
    """Return a rejection if a resource (a level, a register file, a block's limit) is too small, else None."""
    return None if required <= limit else Rejection(what, str(required), str(limit), remedy)


def aligned_extents(extent: int, eps: float, step: int = 1, most: int | None = None) -> list[int]:
    """Return the tile extents along an axis that rule 4 allows: multiples of `step`, smallest first.

    Powers of two (times `step`), divisors, and the whole axis rounded up to `step`.

    Examples
    --------
    >>> aligned_extents(28, 0.0)
    [1, 2, 4, 7, 14, 28]
    >>> aligned_extents(28, 0.2)
    [1, 2, 4, 7, 8, 14, 16, 28, 32]
    """
    return [r for r in _aligned(extent, eps, step) if most is None or r <= most]


@cache
def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a number, the smallest first.

    Examples
    --------
    >>> divisors(12), divisors(9), divisors(1)
    ((1, 2, 3, 4, 6, 12), (1, 3, 9), (1,))
    """
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


@cache
def _aligned(extent: int, eps: float, step: int) -> tuple[int, ...]:
    groups = ceil(extent / step)
    sizes = {d for d in divisors(groups) if d <= 64 or groups // d <= 16}
    power = 1
    while power < 2 * groups:
        sizes.add(power)
        power *= 2
    limit = extent * (1 + eps) + 1e-9
    return tuple(sorted({s * step for s in sizes if s == 1 or ceil(extent / (s * step)) * s * step <= limit}))


def summarise(rejections: Iterable[Rejection]) -> str:
    """Return the rejections as text, grouped by rule, the most frequent first, each with one example."""
    rejections = list(rejections)
    counts = Counter(r.rule for r in rejections)
    lines = []
    for rule, n in counts.most_common():
        example = next(r for r in rejections if r.rule == rule)
        lines.append(f"{n:5d} {rule}: e.g. {example}")
    return "\n".join(lines)
