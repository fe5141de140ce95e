"""Memory shared by kernels of one computation, so that their times differ only by their own work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class Memory:
    """Tensors by their position among a kernel's arguments, their type and their size.

    A tensor's pages decide how well caches keep it: a product with 4 MB of weights takes 21 to 31 us. Compared kernels
    get the same pages, each in the shape of its packed weights; if packing pads, the size and so the pages differ.

    Examples
    --------
    >>> memory = Memory()
    >>> plain = memory.of(1, weights, tvm.nd.array)  # doctest: +SKIP
    >>> packed = memory.of(1, weights.reshape(64, -1, 16), tvm.nd.array)  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str, int], Any] = {}

    def of(self, place: int, values: np.ndarray, made: Callable[[np.ndarray], Any]) -> Any:
        """Return a tensor with these values, valid until the next one of this position, type and size.

        Parameters
        ----------
        place : int
        values : array
        made : function of array -> tensor
            Copies an array to the device; the tensor has ``_create_view`` and ``copyfrom``, as in both lines of TVM.
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
