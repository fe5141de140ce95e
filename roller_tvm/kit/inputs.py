"""The values of the kit's inputs: of an index and a seed, so that the card and Python make the same ones.

They are multiples of 1/128 in -1 to 1. Every type has them exactly, products of two are multiples of 1/16384, and
float32 adds those exactly up to 1024: a sum of products comes to the same bits in whatever order it is taken. So an
answer may differ from the reference by its last rounding, and by what divides (a mean), and by nothing else. What the
operators of a graph hand one another is not exact any more: there sums differ by the order in which they are taken.
"""

from __future__ import annotations

import math
import struct
from typing import Any

_WORD = 0xFFFFFFFF
#: Spread of the values: as many on each side of zero.
STEPS = 128

#: Type -> bytes, the relative step of its fraction, its name in C, and its header.
TYPES: dict[str, tuple[int, float, str, str]] = {
    "float32": (4, 2.0**-23, "float", ""),
    "float16": (2, 2.0**-10, "__half", "cuda_fp16.h"),
    "bfloat16": (2, 2.0**-7, "__nv_bfloat16", "cuda_bf16.h"),
}
#: Steps of the fraction that an answer may differ by, at the largest magnitude of the result: one for the last
#: rounding in another direction, and a mean's division by a product with the inverse.
ROUNDINGS = 2


def value(index: int, seed: int) -> float:
    """The element `index` of the input with that seed.

    Examples
    --------
    >>> [value(i, 1) * STEPS for i in range(3)]
    [32.0, -128.0, -63.0]
    """
    return float((step_of(index, seed) - STEPS) / STEPS)


def step_of(index: Any, seed: int) -> Any:
    """Which of the steps, from the lowest, an element is; of an array of indices (uint64) all at once."""
    h = ((index ^ seed) & _WORD) * 2654435769 & _WORD
    h = (h ^ h >> 15) * 2246822519 & _WORD
    h = (h ^ h >> 13) * 3266489917 & _WORD
    return (h ^ h >> 16) % (2 * STEPS + 1)


def seed_of(position: int) -> int:
    """The seed of the input at a position: equal shapes get other values."""
    return (position + 1) * 0x9E3779B9 & _WORD


def decoded(data: bytes, dtype: str) -> float:
    """The number that an element's bytes are.

    Examples
    --------
    >>> decoded(bytes([0x80, 0x3F]), "bfloat16"), decoded(struct.pack("<e", 0.5), "float16")
    (1.0, 0.5)
    """
    if dtype == "bfloat16":
        data, dtype = b"\0\0" + data, "float32"
    return float(struct.unpack({"float32": "<f", "float16": "<e"}[dtype], data)[0])


def allowed(dtype: str, scale: float, terms: int = 1) -> float:
    """The largest difference from the reference that is let pass, where its largest magnitude is `scale`.

    Parameters
    ----------
    terms : int
        Of sums that are not exact: in another order they differ by about the square root of their number in roundings.

    Examples
    --------
    >>> allowed("float32", 1.0, 100) / allowed("float32", 1.0)
    10.0
    """
    return ROUNDINGS * TYPES[dtype][1] * scale * math.sqrt(max(1, terms))


def each_allowed(dtype: str, scale: float, terms: int = 1) -> tuple[float, float]:
    """What an element may differ by: a share of itself, and that much beside.

    Of exact sums only the last rounding, to the type of the result, differs: in a long bfloat16 sum a whole term would
    hide in the rounding of the largest element.

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
