"""Models on several nodes: the same outputs, the bytes of the plan and no more than any plan of these axes needs."""

import numpy as np
import pytest

from roller_tvm.scale.moves import least_bytes
from roller_tvm.scale.program import FINISH, RECEIVE, SEND, Program
from roller_tvm.scale.proof import refutations
from tests.scale import models
from tests.scale.kit import FREE, RACK, SLOW, expected, forced, lowered, run

MODELS = {"product": models.product, "block": models.block, "convolutions": models.convolutions}


def check(model, source, made, inputs=None):
    """Hold a program against the model itself."""
    inputs = inputs or models.inputs_of(model)
    assert not list(refutations(made.program))
    assert Program.from_json(made.program.to_json()) == made.program
    nodes, outputs = run(source, made, inputs)
    for name, wanted in expected(model, inputs)[0].items():
        np.testing.assert_allclose(outputs[0][name], wanted, rtol=1e-4, atol=1e-5)
    return nodes


@pytest.mark.parametrize("network", [FREE, RACK, SLOW], ids=["free", "rack", "slow"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_one_node(name, count, network):
    model = MODELS[name]()
    source, made = lowered(model, count, network)
    check(model, source, made)
    if count == 1:
        assert made.program.bytes_sent == 0


@pytest.mark.parametrize("name", MODELS)
def test_a_round_sends_the_least_bytes(name):
    _, made = lowered(MODELS[name](), 4)
    assert made.program.rounds, "a free network is used"
    for one in made.program.rounds:
        step = one.step
        assert step.bytes_sent == least_bytes(step.source, step.target, step.shape, step.nodes, step.itemsize)
    assert made.program.bytes_sent == sum(r.step.bytes_sent for r in made.program.rounds)


@pytest.mark.parametrize(("axis", "elements"), [("m", 0), ("n", 0), ("k", 3 * 16 * 32)])
def test_each_axis_of_a_product_has_its_bytes(axis, elements):
    """Rows and columns need nothing but to be gathered; of a sum, each node sends its addends."""
    model = models.product()
    source, made = forced(model, 4, {"y0": axis, "y": {"m": "dim0", "n": "dim1", "k": "dim0"}[axis]})
    check(model, source, made)
    gathered = 3 * 16 * 32 // 4
    (_, tile), = made.program.tiles
    sizes = {"m": 16, "n": 32, "k": 64}
    assert tile.shape == {**sizes, axis: sizes[axis] // 4}
    assert made.program.bytes_sent == 4 * (elements + gathered)


def test_halos_are_sent_while_the_inner_rows_are_computed():
    model = models.convolutions(64, 16)
    wanted = {"a": "h", "b": "dim2", "c": "h", "y": "dim2"}
    source, made = forced(model, 4, wanted, RACK)
    nodes = check(model, source, made)
    halo = next(n for n, r in enumerate(made.program.rounds) if r.step.target.window)
    # Two rows of each of the three borders go over it.
    assert made.program.rounds[halo].step.bytes_sent == 3 * 2 * 16 * 64 * 4
    order = [(i.kind, i.number) for i in made.program.instructions[1]]
    finish = order.index((FINISH, halo))
    assert order[finish - 1][0] == "compute"
    assert max(order.index((SEND, halo)), order.index((RECEIVE, halo))) < finish - 1
    events = nodes[1].events
    assert events[finish - 1].under_way == 4, "two sent and two to come"


def test_nothing_overlaps_where_that_does_not_pay():
    _, made = forced(models.convolutions(), 4, {"a": "h", "b": "dim2", "c": "h", "y": "dim2"}, FREE)
    assert not any(b.inner for b in made.buffers)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_decoder_keeps_its_states_where_they_lie(count):
    model, steps = models.decoder(), 5
    source, made = lowered(model, count, FREE, models.STATES)
    inputs = models.inputs_of(model)
    assert not list(refutations(made.program))
    nodes, outputs = run(source, made, inputs, steps)
    for got, wanted in zip(outputs, expected(model, inputs, steps, models.STATES), strict=True):
        assert got.keys() == wanted.keys() == {"logits"}
        np.testing.assert_allclose(got["logits"], wanted["logits"], rtol=1e-4, atol=1e-5)
    if count > 1:
        held = made.program.buffer(made.program.inputs["keys"])
        assert held.placement.kind == "split", "each node has a part of them"
        moved = {made.program.buffer(r.source).tensor for r in made.program.rounds}
        assert not moved & {"keys", "values", "new_keys", "new_values"}
