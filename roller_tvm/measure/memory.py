"""Memory that kernels of one computation share, so that their times differ by what they do alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class Memory:
    """Tensors by their place among a kernel's arguments, their type and their size.

    Which pages a tensor has decides how well caches keep it: a product with 4 MB of weights takes 21 to 31 us. Kernels
    that are compared get the same pages, in the shape in which each has its weights packed; where packing pads, others.

    Examples
    --------
    >>> memory = Memory()
    >>> plain = memory.of(1, weights, tvm.nd.array)  # doctest: +SKIP
    >>> packed = memory.of(1, weights.reshape(64, -1, 16), tvm.nd.array)  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str, int], Any] = {}

    def of(self, place: int, values: np.ndarray, made: Callable[[np.ndarray], Any]) -> Any:
        """A tensor with these values, valid until the next of this place, type and size.

        Parameters
        ----------
        place : int
        values : array
        made : function of array -> tensor
            A copy in the device's memory; tensors have ``_create_view`` and ``copyfrom``, as both TVM lines' have.
        """
        values = np.asarray(values, order="C")
        if not values.size:
            return made(values)
        key = place, str(values.dtype), values.size
        if key not in self._kept:
            self._kept[key] = made(values.reshape(-1))
        tensor = self._kept[key]._create_view(values.shape)
        tensor.copyfrom(values)
        return tensor
