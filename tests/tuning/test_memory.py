"""Memory that kernels share: the same pages for every shape of a tensor, and the values that were asked for last."""

import numpy as np
import pytest

from roller_bench.timing import random_arguments
from roller_tvm.tuning.timing import Memory


class Tensor:
    def __init__(self, values):
        self.values = np.array(values)

    def _create_view(self, shape):
        view = Tensor(())
        view.values = self.values.reshape(shape)
        return view

    def copyfrom(self, values):
        assert values.shape == self.values.shape
        self.values[...] = values


def same(a, b):
    return np.shares_memory(a.values, b.values)


def test_a_packed_weight_is_where_the_plain_one_was():
    memory, weights = Memory(), np.arange(48, dtype="float32").reshape(6, 8)
    plain = memory.of(1, weights, Tensor)
    assert (plain.values == weights).all()
    packed = memory.of(1, weights.T.reshape(2, 4, 6), Tensor)
    assert same(plain, packed) and (packed.values == weights.T.reshape(2, 4, 6)).all()


@pytest.mark.parametrize("place, size, dtype", [(0, 48, "float32"), (1, 50, "float32"), (1, 48, "int8")])
def test_other_places_sizes_and_types_have_their_own(place, size, dtype):
    memory = Memory()
    first = memory.of(1, np.ones(48, "float32"), Tensor)
    other = memory.of(place, np.zeros(size, dtype), Tensor)
    assert not same(first, other) and first.values.all() and other.values.dtype == dtype


def test_single_elements_and_none():
    memory = Memory()
    assert memory.of(0, np.float32(3), Tensor).values.shape == ()
    assert memory.of(0, np.zeros((0, 4), "float32"), Tensor).values.shape == (0, 4)


def test_random_arguments_of_two_kernels():
    memory, shapes = Memory(), [((4, 6), "float32"), ((6, 8), "float32")]
    plain = random_arguments(shapes, memory, Tensor)
    packed = random_arguments([shapes[0], ((2, 6, 4), "float32")], memory, Tensor)
    assert all(same(a, b) for a, b in zip(plain, packed, strict=True)) and not same(*plain)
    assert packed[1].values.shape == (2, 6, 4) and all((t.values > 0).all() for t in plain)
