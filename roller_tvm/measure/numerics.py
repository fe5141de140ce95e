"""Answers compared: seeded values for inputs, and how far two results may be apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np

SEED = 20200
#: Values repeat after this many; a prime, so that no tensor dimension is a period of them.
PERIOD = 1_000_003
#: Error allowed, in units of eps * sqrt(terms summed) * largest magnitude of the result. Rounding in another
#: order stays near 1; one term of a sum left out is far above for every reduction met in practice.
SLACK = 16.0
#: Of the largest magnitude, an error whatever the type and the sum. Of 25088 terms float16 itself is off by 0.04, of
#: 4608 bfloat16 by 0.13, while a ninth of a 3x3 window's terms left out is 0.33 and a result of zeros 1.
MOST = 0.25
#: Of a reference that says something: the share of its values that are numbers, and the largest of them over the
#: typical one. Errors are held against the largest: a few poles of a quotient would hide those of all others.
NUMBERS, LARGEST = 0.99, 1e3
#: Below this every magnitude is taken for 0; and the binary exponent that float64 has for it.
SMALLEST = 1e-30
NEARLY_ZERO = int(np.float64(SMALLEST).view(np.int64) >> 52)
#: numpy has no bfloat16; its values are compared as the float32 they convert to.
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def shape_of(tensor: Any) -> tuple[int, ...]:
    return tuple(int(e) for e in tensor.shape)


def make_inputs(tensors: Sequence[Any], positive: bool = False) -> list[np.ndarray]:
    """Seeded values for each placeholder: normal (or, where roots and logarithms need it, in 0.5 to 1.5)."""
    rng = np.random.default_rng(SEED)
    block = rng.standard_normal(PERIOD, dtype=np.float32)
    if positive:
        block = rng.random(PERIOD, dtype=np.float32) + np.float32(0.5)
    bits = rng.integers(0, 2, PERIOD, dtype=np.int8)  # also valid as indices wherever there are two rows
    # Bytes are data: of bits a requantized sum is 0 nearly everywhere, whatever is wrong with it.
    whole = rng.integers(-128, 128, PERIOD, dtype=np.int8)
    result = []
    for number, tensor in enumerate(tensors):
        shape, dtype = shape_of(tensor), str(tensor.dtype)
        source = block if dtype.startswith(("float", "bfloat")) else whole if dtype in ("int8", "uint8") else bits
        size = prod(shape)
        # Another start for each tensor, or equal shapes would get equal values.
        values = np.resize(np.roll(source, 7919 * number), size) if size else np.zeros(0, source.dtype)
        result.append(values.reshape(shape).astype(dtype))
    return result


def load(path: Path, dtype: str) -> np.ndarray:
    """An array as ``numpy.save`` wrote it, mapped; of bfloat16 it writes no more than that elements have two bytes."""
    array: np.ndarray = np.load(path, mmap_mode="r")
    return array.view(np.dtype(dtype)) if array.dtype.kind == "V" else array


def reference_on(
    tensors: Sequence[Any], compute: Callable[[list[np.ndarray]], Sequence[np.ndarray]],
    positives: Sequence[bool] = (False, True),
) -> tuple[list[np.ndarray], list[np.ndarray]]:  # fmt: skip
    """Values for each placeholder and what is expected of them: positive ones where others say little.

    Parameters
    ----------
    compute : function of the values
        The results of an independent implementation.
    positives : sequence of bool
        Kinds of values to try, in this order.
    """
    told = []
    for positive in positives:
        inputs = make_inputs(tensors, positive)
        expected = list(compute(inputs))
        if usable(expected):
            return inputs, expected
        told.append((inputs, expected))
    return max(told, key=lambda pair: numbers(pair[1]))  # the first of them, if both are as good


def tolerance(dtype: str, terms: int) -> float:
    """Largest error allowed, relative to the largest magnitude in the result; 0 for integers.

    Examples
    --------
    >>> f"{tolerance('float32', 576):.1e}"
    '4.6e-05'
    """
    return min(MOST, SLACK * EPSILON[dtype] * sqrt(max(1, terms))) if dtype in EPSILON else 0.0


def rounding_terms(sums: Iterable[tuple[int, str]], results: Sequence[str]) -> int:
    """Terms of the one sum, in the type of the result, that rounds as much as all of them in a row.

    Parameters
    ----------
    sums : iterable of (int, str)
        For each stage that computes the terms it sums, 1 where it sums nothing, and the type it is kept in. Errors
        add up, each with its root; what is kept in a coarser type than the result rounds so much more.
    results : sequence of str
        Types of the outputs.

    Examples
    --------
    >>> rounding_terms([(64, "float32"), (1, "float32")], ["float32"])
    64
    >>> rounding_terms([(1, "float16")], ["float32"]) == 2**26  # cast at the end
    True
    """
    result = max((EPSILON[r] for r in results if r in EPSILON), default=0.0)
    roots = 0.0
    for terms, dtype in sums:
        coarser = EPSILON[dtype] / result if result and dtype in EPSILON else 1.0
        if terms > 1 or coarser > 1:
            roots += sqrt(terms) * max(1.0, coarser)
    return max(1, round(roots**2))


def difference(got: np.ndarray, expected: np.ndarray, terms: int) -> str:
    """Why two results differ, or '' if they agree."""
    if got.shape != expected.shape:
        return f"shape {got.shape} instead of {expected.shape}"
    allowed = tolerance(str(expected.dtype), terms)
    if not allowed:
        wrong = int(np.count_nonzero(got != expected))
        return f"{wrong} of {got.size} integers differ" if wrong else ""
    got, expected = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(got)):
        odd = int(np.count_nonzero(finite != np.isfinite(got)))
        return f"{odd} of {got.size} values are NaN or infinite in one only"
    if not np.array_equal(got[~finite], expected[~finite], equal_nan=True):
        return "infinities or NaNs differ"
    if not finite.any():
        return ""
    got, expected = got[finite], expected[finite]
    errors = np.abs(got - expected)
    for group, scale in _groups(np.abs(expected)):
        if (error := errors[group].max()) > allowed * scale:
            return f"error {error:.3g} at magnitude {scale:.3g}, allowed {allowed * scale:.3g}"
    return ""


def _groups(magnitudes: np.ndarray) -> Iterator[tuple[Any, float]]:
    """Values by magnitude, each group with its largest: a gap of more than `LARGEST` begins another.

    Of what a mask filled with -1e9 and scores near 1, errors of the scores are not held against the 1e9.
    """
    # Binary exponents rather than an order: results have millions of elements. What is nearly 0 is of the first group.
    powers = np.maximum(magnitudes.view(np.int64) >> 52, NEARLY_ZERO)
    found = np.flatnonzero(np.bincount(powers)).tolist()
    starts = [b for a, b in zip(found, found[1:], strict=False) if a > NEARLY_ZERO and 2.0 ** (b - a - 1) > LARGEST]
    for low, high in zip([0, *starts], [*starts, np.inf], strict=True):
        group = (powers >= low) & (powers < high) if starts else slice(None)
        yield group, max(float(magnitudes[group].max()), SMALLEST)


def usable(expected: Sequence[np.ndarray]) -> bool:
    """Whether a reference says something of all its values: they are numbers, none of them far above the others.

    Examples
    --------
    >>> usable([np.array([1.0, -2.0, 0.0])]), usable([np.array([1.0, np.nan])]), usable([np.array([1.0, 2.0, 1e6])])
    (True, False, False)
    """
    return numbers(expected) >= NUMBERS and all(_largest(e) <= LARGEST for e in _floats(expected))


def _floats(expected: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [e for e in expected if e.size and np.issubdtype(e.dtype, np.floating)]


def numbers(expected: Sequence[np.ndarray]) -> float:
    """Share of the values that are numbers, of the result that has fewest."""
    return min((float(np.isfinite(e).mean()) for e in _floats(expected)), default=1.0)


def _largest(values: np.ndarray) -> float:
    """The largest magnitude over the typical one of those that are not 0."""
    magnitudes = np.abs(values[np.isfinite(values) & (values != 0)], dtype=np.float64)
    return float(magnitudes.max() / np.median(magnitudes)) if magnitudes.size else 1.0
