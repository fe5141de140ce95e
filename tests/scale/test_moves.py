"""Parts of tensors that nodes send each other, against numpy."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roller_tvm.scale.moves import Step, least_bytes, steps
from roller_tvm.scale.placement import ROOT, SUM, WHOLE, Placement, Window, inner_rows, share, split
from tests.sampling import examples

SHAPE = (6, 8, 5)
WINDOW = Placement("split", 1, Window(out=8, size=3, stride=1, dilation=1, before=1))
STRIDED = Placement("split", 1, Window(out=4, size=3, stride=2, dilation=1, before=1))
SPLITS = (split(0), split(1), split(2))
SOURCES, TARGETS = (WHOLE, SUM, *SPLITS), (WHOLE, ROOT, *SPLITS, WINDOW, STRIDED)


def part_of(whole, placement, nodes, node):
    """A node's part of a tensor, zeros outside of it."""
    region = placement.region(whole.shape, nodes, node)
    if region is None:
        return None
    pads = [(max(0, -low), max(0, high - n)) for (low, high), n in zip(region, whole.shape, strict=True)]
    padded = np.pad(whole, pads)
    cut = [slice(low + before, high + before) for (low, high), (before, _) in zip(region, pads, strict=True)]
    return padded[tuple(cut)]


def carried_out(step, held):
    """The parts of all nodes after a round."""
    found = []
    for node in range(step.nodes):
        shape = step.target.local_shape(step.shape, step.nodes, node)
        made = np.zeros(shape) if step.target.region(step.shape, step.nodes, node) is not None else None
        for part in [p for p in step.parts if p.target == node]:
            at, to = (tuple([slice(a, b) for a, b in region]) for region in (part.at, part.to))
            made[to] = held[part.source][at] + (made[to] if step.adds else 0)
        found.append(made)
    return found


@pytest.mark.parametrize("nodes", [2, 3, 4])
@pytest.mark.parametrize(("source", "target"), itertools.product(SOURCES, TARGETS), ids=str)
def test_every_element_gets_where_it_is_needed(source, target, nodes):
    rng = np.random.default_rng(0)
    addends = rng.integers(0, 9, (nodes, *SHAPE)).astype(float)
    whole = addends.sum(0) if source == SUM else addends[0]
    held = [addends[n] if source == SUM else part_of(whole, source, nodes, n) for n in range(nodes)]
    rounds = steps(source, target, SHAPE, nodes, 4)
    assert rounds or source == target
    for step in rounds:
        held = carried_out(step, held)
        assert Step.from_json(step.to_json()) == step
    for node in range(nodes):
        wanted = part_of(whole, target, nodes, node) if target != source else held[node]
        assert (held[node] is None and wanted is None) or np.array_equal(held[node], wanted)
    sent = sum(step.bytes_sent for step in rounds)
    least = least_bytes(source, target, SHAPE, nodes, 4) if source != target else 0
    # Sums are made in equal shares; strided windows do not begin where these do.
    assert sent >= least if (source, target) == (SUM, STRIDED) else sent == least


@settings(max_examples=examples(100), deadline=None)
@given(*(st.integers(*ends) for ends in ((1, 40), (1, 4), (1, 3), (1, 2), (0, 3), (1, 5))))
def test_inner_rows_are_those_that_need_no_neighbour(out, size, stride, dilation, before, nodes):
    window = Window(out, size, stride, dilation, before)
    extent = max(1, (out - 1) * stride + (size - 1) * dilation + 1 - before)
    for node in range(nodes):
        low, high = share(out, nodes, node)
        start, end = share(extent, nodes, node)
        alone = [o for o in range(low, high) if window.reads(o, o + 1)[0] >= start and window.reads(o, o + 1)[1] <= end]
        first, last = inner_rows(window, extent, nodes, node)
        assert list(range(first, last)) == alone
