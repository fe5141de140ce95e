"""The kernel of a recurrence, in every way of sharing its work, against ONNX's equations."""

from dataclasses import replace

import numpy as np
import pytest

pytestmark = pytest.mark.te
tvm = pytest.importorskip("tvm")

from roller_tvm.codegen.dialect import dialect_here  # noqa: E402
from roller_tvm.codegen.flat import kind_of, statements  # noqa: E402
from roller_tvm.codegen.waiting import REGION, all_wait  # noqa: E402
from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.recurrences.cell import Cell, Recurrence, activations  # noqa: E402
from roller_tvm.recurrences.kernel import kernel, tensor_shapes  # noqa: E402
from roller_tvm.recurrences.tiles import Tiles, candidates, plain_tiles, plan, units_of  # noqa: E402
from roller_tvm.recurrences.weights import in_other_blocks, prepared  # noqa: E402
from roller_tvm.tvm_env import line  # noqa: E402

from ..sampling import covering  # noqa: E402
from .reference import random_weights, reference  # noqa: E402


def of_state(array, units):
    """A state [..., hidden] with zeros for units that are none."""
    return np.pad(array, [*[(0, 0)] * (array.ndim - 1), (0, units - array.shape[-1])])


def built(layer, tiles):
    """The kernel of a layer as a function of tensors."""
    if line() == "relay":
        return built_of_te(layer, tiles)
    from roller_tvm.relax.recurrent import prim_func

    func = prim_func(layer, tiles).with_attr("global_symbol", "main")
    return tvm.compile(tvm.IRModule({"main": func}), {"kind": "llvm", "num-cores": 2}).jit()["main"]


def built_of_te(layer, tiles):
    from tvm import te

    reads, writes = tensor_shapes(layer, tiles)
    ins = [te.placeholder(shape, "int32" if n == "lengths" else "float32", n) for n, shape in reads.items()]

    def body(i, o):
        return kernel(layer, tiles, dialect_here(), dict(zip((*reads, *writes), (*i, *o), strict=True)))

    outs = te.extern(list(writes.values()), ins, body, dtype=["float32"] * len(writes))
    return tvm.build(te.create_schedule(outs[0].op), [*ins, *outs], "llvm -num-cores 2")


def run(layer, tiles, features=5, seed=0):
    """What the kernel computes, and the reference."""
    rng, weights = np.random.default_rng(seed), random_weights(layer, features, seed)
    state = (layer.directions, layer.batch, layer.hidden)
    x = rng.normal(size=(layer.steps, layer.batch, features)).astype("float32")
    h0, c0 = (rng.normal(size=state).astype("float32") for _ in range(2))
    lengths = rng.integers(1, layer.steps + 1, layer.batch).astype("int32") if layer.lengths else None
    own = prepared(layer, tiles, *(weights[name] for name in "WRBP"))
    reads, writes = tensor_shapes(layer, tiles)
    sums = x.reshape(-1, features) @ own["inputs"] + own["start"]
    given = {**own, "sums": sums.reshape(reads["sums"]), "lengths": lengths}
    given |= {name: of_state(array, tiles.units) for name, array in (("h0", h0), ("c0", c0))}
    tensor = tvm.nd.array if line() == "relay" else tvm.runtime.tensor
    arguments = [tensor(np.ascontiguousarray(given[name])) for name in reads]
    results = [tensor(np.full(shape, np.nan, "float32")) for shape in writes.values()]
    built(layer, tiles)(*arguments, *results)
    made = {name: one.numpy()[..., : layer.hidden] for name, one in zip(writes, results, strict=True)}
    y = made["y"].transpose(0, 2, 1, 3) if layer.rows_first else made["y"]
    return [y, *(made[name] for name in ("h", "c") if name in made)], reference(layer, x, weights, h0, c0, lengths)


def layer_of(kind, batch=3, hidden=20, ways=(False, True), lengths=False, rows_first=False, **cell):
    own = Cell(kind, activations(kind, len(ways), [], [], []), **cell)
    return Recurrence(own, 6, batch, hidden, ways, lengths, rows_first)


LAYERS = {
    "lstm": layer_of("LSTM", peepholes=True, clip=0.7, rows_first=True),
    "lstm of lengths": layer_of("LSTM", batch=5, hidden=33, lengths=True, ways=(True,)),
    "gru, reset first": layer_of("GRU", batch=4, hidden=40),
    "gru, reset last": layer_of("GRU", hidden=16, linear_before_reset=True, lengths=True),
    "rnn": layer_of("RNN", batch=1, hidden=64, ways=(False,)),
}


@pytest.mark.one_line
@pytest.mark.parametrize(("name", "way"), covering(LAYERS, ["serial", "rows", "units"]))
def test_every_way_computes_the_layer(name, way):
    layer = LAYERS[name]
    vectors = 2 if units_of(layer.hidden) % 16 == 0 else 1
    tiles = Tiles(8, vectors, units_of(layer.hidden) // (8 * vectors), min(2, layer.batch), 4, way)
    made, wanted = run(layer, tiles)
    for one, other in zip(made, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=5e-6)


def test_a_wrong_kernel_is_seen():
    layer = LAYERS["rnn"]
    made, wanted = run(replace(layer, backward=(True,)), plain_tiles(layer))
    assert all(np.abs(a - b).max() < 5e-6 for a, b in zip(made, wanted, strict=True))
    _, forward = run(layer, plain_tiles(layer))
    assert np.abs(made[0] - forward[0]).max() > 0.1


def test_weights_go_from_blocks_to_blocks():
    layer = LAYERS["lstm"]
    weights = random_weights(layer, 5)
    before, after = plain_tiles(layer), Tiles(8, 4, 1, 1, 8, "serial")
    packed = [prepared(layer, tiles, *(weights[n] for n in "WRBP"))["weights"] for tiles in (before, after)]
    np.testing.assert_array_equal(in_other_blocks(packed[0], layer, before, after), packed[1])
    assert not np.array_equal(*packed)


class TestPlan:
    def test_threads_share_what_is_worth_it(self):
        device = replace(load_device("cpu"), units=2)
        small = plan(replace(layer_of("RNN", 1, 16, (False,)), steps=50), device)[0]
        large = plan(replace(layer_of("LSTM", 1, 512, (False,)), steps=50), device)[0]
        both = plan(replace(layer_of("LSTM", 1, 256), steps=50), device)[0]
        assert (small.way, large.way, both.way) == ("serial", "units", "rows")

    def test_candidates_fit(self):
        layer = layer_of("GRU", 8, 200)
        for tiles in candidates(layer, replace(load_device("cpu"), units=2)):
            assert tiles.units == units_of(200) and tiles.rows <= 8
            assert tiles.rows * tiles.vectors <= tiles.registers

    def test_one_core_has_no_threads(self):
        device = replace(load_device("cpu"), units=1)
        assert {tiles.way for tiles in candidates(layer_of("LSTM", 4, 64), device)} == {"serial"}


def test_a_region_without_its_waiting_is_seen():
    layer = LAYERS["gru, reset first"]
    tiles = Tiles(8, 1, 6, 2, 4, "units", "x86-64")
    dialect = dialect_here()
    shapes = {name: shape for part in tensor_shapes(layer, tiles) for name, shape in part.items()}
    tensors = {name: dialect.tir.decl_buffer(shape, "float32", name) for name, shape in shapes.items()}
    body = kernel(layer, tiles, dialect, tensors)
    (region,) = [n for n in statements(body) if kind_of(n) == "AttrStmt" and str(n.attr_key) == REGION]
    assert all_wait(region.body)
    (loop,) = [n for n in statements(region) if kind_of(n) == "For" and str(n.loop_var.name) == "step"]
    assert not all_wait(dialect.tir.SeqStmt([*list(loop.body.seq)[:-1], loop.body.seq[0]]))
