"""Compare answers: seeded values for inputs, and the permitted difference of two results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np

SEED = 20200
#: Number of values before they repeat; a prime, so that no tensor dimension is a period.
PERIOD = 1_000_003
#: Permitted error, in units of eps * sqrt(terms summed) * largest magnitude of the result. Rounding in another order
#: stays near 1; a missing term of a sum is far above it for every reduction met in practice.
SLACK = 16.0
#: Largest permitted error for any type and sum, as a fraction of the largest magnitude. Correct sums are off by 0.04
#: for 25088 terms in float16 and by 0.13 for 4608 in bfloat16; with a ninth of a 3x3 window's terms missing the error
#: is 0.33, and for a result of zeros 1.
MOST = 0.25
#: A usable reference: least share of its values that are numbers, largest ratio of its largest to its typical value.
#: Errors are compared with the largest value, so a few poles of a quotient would hide the errors of all others.
NUMBERS, LARGEST = 0.99, 1e3
#: Magnitude below which values count as 0, and its binary exponent in float64.
SMALLEST = 1e-30
NEARLY_ZERO = int(np.float64(SMALLEST).view(np.int64) >> 52)
#: Type -> relative rounding step. numpy has no bfloat16; such values are compared as float32.
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def shape_of(tensor: Any) -> tuple[int, ...]:
    return tuple(int(e) for e in tensor.shape)


def make_inputs(tensors: Sequence[Any], positive: bool = False) -> list[np.ndarray]:
    """Return seeded values for each placeholder: normal, or 0.5 to 1.5 if `positive` (roots and logarithms)."""
    rng = np.random.default_rng(SEED)
    block = rng.standard_normal(PERIOD, dtype=np.float32)
    if positive:
        block = rng.random(PERIOD, dtype=np.float32) + np.float32(0.5)
    bits = rng.integers(0, 2, PERIOD, dtype=np.int8)  # also valid as indices wherever there are two rows
    # Bytes are data: for 0 and 1, a requantized sum is 0 nearly everywhere, even if it is wrong.
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
    """Map an array written by ``numpy.save``; for bfloat16, the file only knows that elements have two bytes."""
    array: np.ndarray = np.load(path, mmap_mode="r")
    return array.view(np.dtype(dtype)) if array.dtype.kind == "V" else array


def reference_on(
    tensors: Sequence[Any], compute: Callable[[list[np.ndarray]], Sequence[np.ndarray]],
    positives: Sequence[bool] = (False, True),
) -> tuple[list[np.ndarray], list[np.ndarray]]:  # fmt: skip
    """Return values for each placeholder and the expected results; positive values if others give no usable reference.

    Parameters
    ----------
    compute : function of the values
        Returns the results of an independent implementation.
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
    """Return the largest permitted error relative to the largest magnitude of the result; 0 for integers.

    Examples
    --------
    >>> f"{tolerance('float32', 576):.1e}"
    '4.6e-05'
    """
    return min(MOST, SLACK * EPSILON[dtype] * sqrt(max(1, terms))) if dtype in EPSILON else 0.0


def rounding_terms(sums: Iterable[tuple[int, str]], results: Sequence[str]) -> int:
    """Return the length of one sum, in the result's type, that has the rounding error of all given sums in a row.

    Parameters
    ----------
    sums : iterable of (int, str)
        For each computing stage, its number of terms (1 without a sum) and its type. Errors, the roots of the terms,
        add up; a coarser type than the result's counts accordingly more.
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
    """Return the reason that two results differ, or '' if they agree."""
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
    """Yield groups of values by magnitude, each with its largest; a gap of more than `LARGEST` begins another.

    For example, errors of scores near 1 are not compared with the -1e9 that a mask filled in.
    """
    # Binary exponents instead of sorting, as results have millions of elements. Values near 0 are in the first group.
    powers = np.maximum(magnitudes.view(np.int64) >> 52, NEARLY_ZERO)
    found = np.flatnonzero(np.bincount(powers)).tolist()
    starts = [b for a, b in zip(found, found[1:], strict=False) if a > NEARLY_ZERO and 2.0 ** (b - a - 1) > LARGEST]
    for low, high in zip([0, *starts], [*starts, np.inf], strict=True):
        group = (powers >= low) & (powers < high) if starts else slice(None)
        yield group, max(float(magnitudes[group].max()), SMALLEST)


def usable(expected: Sequence[np.ndarray]) -> bool:
    """Return True if a reference is usable for all its values: nearly all are numbers, none far above the others.

    Examples
    --------
    >>> usable([np.array([1.0, -2.0, 0.0])]), usable([np.array([1.0, np.nan])]), usable([np.array([1.0, 2.0, 1e6])])
    (True, False, False)
    """
    return numbers(expected) >= NUMBERS and all(_largest(e) <= LARGEST for e in _floats(expected))


def _floats(expected: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [e for e in expected if e.size and np.issubdtype(e.dtype, np.floating)]


def numbers(expected: Sequence[np.ndarray]) -> float:
    """Return the least share of finite values among the floating-point results; 1.0 if there are none."""
    return min((float(np.isfinite(e).mean()) for e in _floats(expected)), default=1.0)


def _largest(values: np.ndarray) -> float:
    """Return the largest magnitude over the median of the nonzero ones."""
    magnitudes = np.abs(values[np.isfinite(values) & (values != 0)], dtype=np.float64)
    return float(magnitudes.max() / np.median(magnitudes)) if magnitudes.size else 1.0
