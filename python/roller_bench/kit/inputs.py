"""Values of the kit's inputs, computed from an index and a seed, so that the card and Python make the same ones.

Values are multiples of 1/128 from -1 to 1, which every type represents exactly. Products of two are multiples of
1/16384, and float32 adds those exactly up to 1024, so a sum of products has the same bits in any order. An answer may
therefore differ from the reference only by its last rounding, and by a division (a mean). Intermediate tensors of a
graph are no longer exact: their sums differ by the order of addition.
"""

from __future__ import annotations

import math
import struct
from typing import Any

_WORD = 0xFFFFFFFF
#: Number of values on each side of zero.
STEPS = 128

#: Type -> (bytes, relative step of its fraction, name in CUDA C++, header).
TYPES: dict[str, tuple[int, float, str, str]] = {
    "float32": (4, 2.0**-23, "float", ""),
    "float16": (2, 2.0**-10, "__half", "cuda_fp16.h"),
    "bfloat16": (2, 2.0**-7, "__nv_bfloat16", "cuda_bf16.h"),
}
#: Steps of the fraction by which an answer may differ, at the result's largest magnitude: one because the last rounding
#: may go the other way, one because a mean may multiply by the inverse instead of dividing.
ROUNDINGS = 2


def value(index: int, seed: int) -> float:
    """Return element `index` of the input with the given seed.

    Examples
    --------
    >>> [value(i, 1) * STEPS for i in range(3)]
    [32.0, -128.0, -63.0]
    """
    return float((step_of(index, seed) - STEPS) / STEPS)


def step_of(index: Any, seed: int) -> Any:
    """Return an element's step number, 0 to 2 * STEPS; `index` is an int or a uint64 array of indices."""
    h = ((index ^ seed) & _WORD) * 2654435769 & _WORD
    h = (h ^ h >> 15) * 2246822519 & _WORD
    h = (h ^ h >> 13) * 3266489917 & _WORD
    return (h ^ h >> 16) % (2 * STEPS + 1)


def seed_of(position: int) -> int:
    """Return the seed of the input at a position: inputs of equal shape get different values."""
    return (position + 1) * 0x9E3779B9 & _WORD


def decoded(data: bytes, dtype: str) -> float:
    """Return the number encoded by an element's bytes.

    Examples
    --------
    >>> decoded(bytes([0x80, 0x3F]), "bfloat16"), decoded(struct.pack("<e", 0.5), "float16")
    (1.0, 0.5)
    """
    if dtype == "bfloat16":
        data, dtype = b"\0\0" + data, "float32"
    return float(struct.unpack({"float32": "<f", "float16": "<e"}[dtype], data)[0])


def allowed(dtype: str, scale: float, terms: int = 1) -> float:
    """Return the largest permitted difference from the reference; `scale` is the reference's largest magnitude.

    Parameters
    ----------
    terms : int
        Number of terms of an inexact sum. In another order it differs by about the square root of `terms` roundings.

    Examples
    --------
    >>> allowed("float32", 1.0, 100) / allowed("float32", 1.0)
    10.0
    """
    return ROUNDINGS * TYPES[dtype][1] * scale * math.sqrt(max(1, terms))


def each_allowed(dtype: str, scale: float, terms: int = 1) -> tuple[float, float]:
    """Return an element's permitted difference as (share of its magnitude, absolute part).

    An exact sum differs only by its last rounding to the type of the result. A limit from the largest element would be
    too wide: in a long bfloat16 sum it would hide a whole missing term.

    Examples
    --------
    >>> each_allowed("float32", 1.0) == (0.0, allowed("float32", 1.0))
    True
    >>> each_allowed("bfloat16", 100.0) == (2 * 2**-7, 100 * 2 * 2**-23)
    True
    """
    if terms > 1 or dtype == "float32":
        return 0.0, allowed(dtype, scale, terms)
    return ROUNDINGS * TYPES[dtype][1], allowed("float32", scale)
