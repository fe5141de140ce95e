"""Products on a matrix unit: with its instructions emulated on any CPU, with the unit itself where there is one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import tirx  # noqa: E402

from roller_tvm.codegen.matrix_kernel import (  # noqa: E402
    OPERAND,
    STRIPES,
    MatrixKernel,
    asked_of_panel,
    is_splittable,
    packed_weights,
)
from roller_tvm.device.cpu_detect import detect_cpu  # noqa: E402
from roller_tvm.device.matrix_unit import matrix_features  # noqa: E402
from roller_tvm.micro_perf.matrix_unit import MatrixTiles  # noqa: E402

from ..sampling import sampled  # noqa: E402

UNITS = 2


def function(tiles, emulated):
    a = tirx.decl_buffer([tiles.rows + tiles.beyond, tiles.terms], "float32", "a")
    w = tirx.decl_buffer([tiles.blocks[1] * tiles.blocks[2] * OPERAND], "uint16", "w")
    c = tirx.decl_buffer([tiles.rows, tiles.columns], "float32", "c")
    body = MatrixKernel(
        tiles, lambda row, term: tirx.BufferLoad(a, [row, term]), w,
        lambda row, column, value: tirx.BufferStore(c, value, [row, column]), UNITS, emulated,
    ).body()  # fmt: skip
    return tirx.PrimFunc([a, w, c], body).with_attrs({"global_symbol": "main", "tirx.noalias": True})


def product(tiles, x, weights, emulated=True):
    own = {"mcpu": "haswell"} if emulated else {"mcpu": "skylake-avx512", "mattr": ["+amx-tile", "+amx-bf16"]}
    target = tvm.target.Target({"kind": "llvm", "num-cores": UNITS} | own)
    built = tvm.compile(tvm.IRModule({"main": function(tiles, emulated)}), target)
    out = tvm.runtime.tensor(np.full((tiles.rows, tiles.columns), np.nan, "float32"))
    built["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(packed_weights(weights, tiles.places).reshape(-1)), out)
    return out.numpy()


def operands(tiles, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s).astype("float32") for s in ((tiles.rows, tiles.terms), (tiles.terms, tiles.columns))]


#: Rows, terms, columns, blocks of rows together, blocks of the sum together, by rows.
CASES = [(1, 32, 32, 1, 1, False), (16, 64, 32, 1, 2, True), (17, 64, 96, 1, 1, False), (32, 32, 64, 1, 1, False),
         (70, 64, 32, 2, 2, True), (75, 128, 96, 2, 2, False), (100, 96, 64, 3, 1, True),
         (70, 48, 80, 2, 2, True), (40, 16, 144, 2, 1, False), (150, 112, 48, 2, 2, True)]  # fmt: skip


@pytest.mark.parametrize("case", sampled([(case,) for case in CASES], 2))
def test_products(case):
    tiles = MatrixTiles(*case, seconds=1.0)
    x, w = operands(tiles)
    exact = x.astype("float64") @ w
    error = np.abs(product(tiles, x, w) - exact).max() / np.abs(exact).max()
    assert error < 1e-6


@pytest.mark.parametrize(
    ("together", "depth", "by_rows"), [(1, 6, False), (2, 12, True), (3, 6, True), (1, 4, False)]
)
def test_rows_of_windows(together, depth, by_rows):
    """Rows 40 and 1 apart, 3 and 2 of them, whose products are added up; among them is one beyond bfloat16."""
    tiles = MatrixTiles(90, 48, 64, together, depth, by_rows, 1.0, taps=((3, 40), (2, 1)))
    assert (tiles.places, tiles.deep, tiles.beyond, tiles.blocks) == (6, 2, 81, (3, 2, 12))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((tiles.rows + tiles.beyond, tiles.terms)).astype("float32")
    w = rng.standard_normal((tiles.places * tiles.terms, tiles.columns)).astype("float32")
    for large in (None, np.finfo("float32").max):
        if large is not None:
            x[-3, 5], w[5::48] = large, 0.25
        windows = [x[y * 40 + z :][: tiles.rows] for y in range(3) for z in range(2)]
        exact = np.concatenate(windows, axis=1).astype("float64") @ w
        np.testing.assert_allclose(product(tiles, x, w), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [53, 71])
def test_columns_that_fill_no_vector(columns):
    tiles = MatrixTiles(33, 48, columns, 2, 2, columns == 71, seconds=1.0)
    x, w = operands(tiles)
    x[5, 7], w[7] = np.inf, 1.0  # its block is summed up by multiply-adds
    with np.errstate(invalid="ignore"):
        exact = x.astype("float64") @ w
    np.testing.assert_allclose(product(tiles, x, w), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", sampled([(case,) for case in CASES], 2, 1))
def test_products_on_the_unit(case):
    if not matrix_features(detect_cpu()):
        pytest.skip("this CPU has no matrix unit, or the system keeps it")
    tiles = MatrixTiles(*case, seconds=1.0)
    x, w = operands(tiles)
    exact = x.astype("float64") @ w
    error = np.abs(product(tiles, x, w, emulated=False) - exact).max() / np.abs(exact).max()
    assert error < 1e-6


@pytest.mark.parametrize(
    ("depth", "by_rows"), [(1, False), (3, False), (1, True), (3, True)]
)
def test_rows_that_are_known_at_the_call(depth, by_rows):
    tiles = MatrixTiles(150, 96, 80, 2, depth, by_rows, 1.0)
    n = tirx.Var("n", "int64")
    a, c = tirx.decl_buffer([n, 96], "float32", "a"), tirx.decl_buffer([n, 80], "float32", "c")
    w = tirx.decl_buffer([tiles.blocks[1] * tiles.blocks[2] * OPERAND], "uint16", "w")
    body = MatrixKernel(
        tiles, lambda row, term: tirx.BufferLoad(a, [row, term]), w,
        lambda row, column, value: tirx.BufferStore(c, value, [row, column]), UNITS, True, rows=n,
    ).body()  # fmt: skip
    func = tirx.PrimFunc([a, w, c], body).with_attrs({"global_symbol": "main", "tirx.noalias": True})
    built = tvm.compile(
        tvm.IRModule({"main": func}), tvm.target.Target({"kind": "llvm", "num-cores": UNITS, "mcpu": "haswell"})
    )
    for rows in (1, 16, 17, 32, 33, 64, 65, 127, 193):
        x, weights = operands(MatrixTiles(rows, 96, 80, 2, depth, by_rows, 1.0), rows)
        x[rows // 2, 3], weights[3] = np.inf if rows == 65 else 1.0, 1.0
        out = tvm.runtime.tensor(np.full((rows, 80), np.nan, "float32"))
        built["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(packed_weights(weights).reshape(-1)), out)
        np.testing.assert_allclose(out.numpy(), x.astype("float64") @ weights, rtol=1e-4, atol=1e-4)


def test_numbers_that_bfloat16_does_not_have():
    tiles = MatrixTiles(40, 64, 32, 2, 2, False, 1.0)
    x, w = operands(tiles)
    x[3, 5], x[20, 0], x[39, 63], x[7, 7] = np.inf, np.nan, -np.inf, np.finfo("float32").max
    w[:, 0] = 0.5  # whose other parts are 0: infinity times 0 would be NaN
    w[7] *= 0.5
    with np.errstate(invalid="ignore"):
        expected = x @ w
    np.testing.assert_allclose(product(tiles, x, w), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.optimised
def test_the_unit_s_instructions():
    built = tvm.compile(
        tvm.IRModule({"main": function(MatrixTiles(40, 64, 32, 2, 2, False, 1.0), False)}),
        tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512", "mattr": ["+amx-tile", "+amx-bf16"]}),
    )
    code = built.mod.inspect_source("asm") if hasattr(built, "mod") else built.inspect_source("asm")
    # A whole block and one of 8 rows: 6 pairs of parts of 4 and of 2 products.
    assert code.count("tdpbf16ps") == 6 * (4 + 2)
    assert code.count("ldtilecfg") >= 1 and code.count("tilerelease") >= 1 and "syscall" in code


@pytest.mark.parametrize("depth, passes", [(24, 4), (24, 7), (3, 1), (96, 2), (4, 25), (1, 200)])
def test_stripes_cover_the_next_panel_once(depth, passes):
    first, further = asked_of_panel(depth, passes, 32)
    lines = {(at + step * further) // 32 for step in range(depth * passes) for at in first}
    panel = depth * OPERAND // 32
    assert lines >= set(range(panel)) and len(lines) == depth * passes * len(first)
    assert len(first) < OPERAND / 32 / passes + STRIPES  # rounded up
    starts = sorted(at for at in first if at % (depth * passes * further) == 0)
    assert min(STRIPES, -(-OPERAND // 32 // passes)) / 2 < len(starts) <= STRIPES


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_three_parts_make_up_a_number(seed):
    rng = np.random.default_rng(seed)
    weights = (rng.standard_normal((32, 32)) * 10.0 ** rng.integers(-20, 20, (32, 32))).astype("float32")
    assert is_splittable(weights)
    parts = packed_weights(weights)[0, 0]  # part, half of the columns, pair of terms, column, term of the pair
    numbers = (parts.astype(np.uint32) << 16).view(np.float32).astype("float64").sum(0)
    np.testing.assert_array_equal(numbers.transpose(1, 3, 0, 2).reshape(32, 32), weights.astype("float64"))


def test_weights_that_bfloat16_does_not_have():
    weights = np.ones((32, 32), "float32")
    weights[1, 1] = np.inf
    assert not is_splittable(weights)
    weights[1, 1] = np.finfo("float32").max
    assert not is_splittable(weights)
