"""Bytes of staged buffers against the addresses that they really use."""

from itertools import product
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from roller_tvm.micro_perf.storage import alignments, storage_elements

boxes = st.lists(st.integers(1, 9), min_size=1, max_size=4)


def strides_of(box, aligned):
    """Strides by TVM's rule for storage_align: from the last dimension, each rounded up to its factor."""
    factors = dict(aligned)
    strides = [1] * len(box)
    for dim in reversed(range(len(box) - 1)):
        strides[dim] = strides[dim + 1] * box[dim + 1]
        factor = factors.get(dim, 1)
        strides[dim] += -strides[dim] % factor
    return strides


@given(boxes, st.data())
def test_elements_hold_every_address_once(box, data):
    dims = st.integers(0, max(0, len(box) - 2))
    aligned = list(data.draw(st.dictionaries(dims, st.integers(1, 40), max_size=2)).items()) if len(box) > 1 else []
    strides = strides_of(box, aligned)
    addresses = {
        sum(s * i for s, i in zip(strides, point, strict=True)) for point in product(*map(range, box))
    }
    assert len(addresses) == prod(box)
    elements = storage_elements(box, aligned)
    assert max(addresses) < elements == strides[0] * box[0]


@given(boxes, st.integers(0, 40), st.sampled_from([1, 2, 4, 8]))
def test_padding_reaches_the_rows_and_vectors_stay_whole(box, padding, quantum):
    aligned = alignments(box, padding, quantum)
    strides = strides_of(box, aligned)
    if len(box) < 2:
        assert aligned == []
        return
    if padding:
        assert strides[-2] >= box[-1] + padding
        if len(box) > 2 or (box[-1] + padding) % quantum == 0:
            assert strides[-2] == box[-1] + padding
    # The buffer is whole quanta, so that the one after it starts at a whole vector.
    assert storage_elements(box, aligned) % quantum == 0
    assert storage_elements(box, aligned) >= prod(box)


def test_nothing_is_added_where_nothing_is_needed():
    assert alignments([4, 16, 8], 0, 4) == [] and storage_elements([4, 16, 8], []) == 512
    assert storage_elements([], []) == 1 and storage_elements([7], []) == 7
