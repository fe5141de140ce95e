"""exp, erf, tanh and sigmoid as arithmetic on either TVM line: results of the mathematics library, no calls of it."""

import math

import numpy as np
import pytest

pytestmark = [pytest.mark.te, pytest.mark.optimised]
pytest.importorskip("tvm.te")

from tvm import te  # noqa: E402

from roller_tvm.roller.steps import Split, Vectorize  # noqa: E402
from roller_tvm.te import fits  # noqa: E402
from roller_tvm.tvm_env import line  # noqa: E402

from .kernels import built  # noqa: E402

if line() == "relay":
    from tvm import tir
else:
    from tvm import tirx as tir

LANES = 16
FUNCTIONS = {  # in float64
    "exp": np.exp,
    "erf": np.vectorize(math.erf),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
EXACT, FAST = 2, 8  # units in the last place


def values():
    """Of every size that float32 has, both signs, and the numbers where something changes."""
    rng = np.random.default_rng(7)
    small, large = 10.0 ** rng.uniform(-38, 0, 4096), rng.uniform(0, 110, 8192)
    edges = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 88.72283, 88.73, -87.3365, -87.34, -104.0, 3.4e38,
             3.92, 8.5, math.log(2), -math.log(2), 1e-45, 1.1754944e-38, 127.5 * math.log(2)]  # fmt: skip
    breaks = np.float32([fits.TANH_NEAR, fits.ERF_END, math.log(2) / 2, 88.72283, -fits.SMALLEST, -fits.NOTHING])
    around = np.concatenate([np.nextafter(breaks, 0), breaks, np.nextafter(breaks, np.float32(100))])
    flat = np.concatenate([small, -small, large, -large, edges, around, -around]).astype("float32")
    return np.resize(flat, -(-flat.size // LANES) * LANES)


@pytest.mark.parametrize("vector", [True, False])
@pytest.mark.parametrize(("name", "allowed"), [*((name, EXACT) for name in FUNCTIONS), ("erf", FAST), ("tanh", FAST)])
def test_results_are_exact_to_some_units_in_the_last_place(name, allowed, vector):
    function = FUNCTIONS[name]
    given = values()
    x = te.placeholder(given.shape, "float32", name="x")
    y = te.compute(given.shape, lambda i: getattr(tir, name)(x[i]), name="y")
    steps = [Split("y", "i", (LANES,), ("o", "v")), Vectorize("y", "v")] if vector else []
    kernel = built([x, y], steps, ("vector_math", *(["fast_math"] if allowed == FAST else [])))
    assert not any(call in kernel.text for call in ("expf", "erff", "tanhf", "llvm.exp"))
    got = kernel(given.shape, given)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        exact = function(given.astype("float64"))
        rounded = exact.astype("float32")
    nans = np.isnan(given)
    assert (np.isnan(got) == nans).all()
    infinite = np.isinf(rounded)
    assert (got[infinite] == rounded[infinite]).all() and np.isfinite(got[~infinite & ~nans]).all()
    normal = ~infinite & ~nans & (np.abs(exact) >= np.finfo("float32").tiny)
    units = np.abs(got[normal] - exact[normal]) / np.spacing(np.abs(rounded[normal]))
    assert units.max() <= allowed
    below = ~infinite & ~nans & ~normal  # sigmoid and exp of what float32 can hardly hold: nothing, or nearly
    assert np.abs(got[below]).max(initial=0.0) <= 2 * np.finfo("float32").tiny
    assert name not in ("erf", "tanh") or np.nanmax(np.abs(got)) <= 1.0
    assert name != "exp" or (got[given == 0] == 1.0).all()
