"""Errors of exp, erf, tanh, sigmoid and log in kernels for CPUs, in units in the last place, over float32.

    python -m roller_check ulp                      # each 4099th of all float32 values: seconds
    python -m roller_check ulp --every 1            # all 2^32: minutes a function

Exit code 1 if a function is worse than its bound.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

#: Functions of ONNX.
FUNCTIONS = ("Erf", "Exp", "Log", "Sigmoid", "Tanh")
#: Most units in the last place of the correctly rounded value; docs/numerics.md has the words.
BOUND = 2.0
#: The same of `fast_math=True`, for those that it makes faster.
FAST = {"Erf": 8.0, "Tanh": 8.0}
#: Results below the smallest normal number of float32 may be 0: an error of so much is none.
SMALLEST = 1.1754944e-38
#: Elements of a kernel's input.
CHUNK = 1 << 22


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="roller_check ulp", description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=4099, help="1 walks all float32 values; default 4099")
    parser.add_argument("--functions", nargs="*", choices=FUNCTIONS, default=FUNCTIONS)
    parser.add_argument("--fast-math", action="store_true", help="as fast_math=True computes them")
    args, worse = parser.parse_args(words), False
    for name in args.functions:
        error, at = worst(name, args.every, args.fast_math)
        bound = FAST.get(name, BOUND) if args.fast_math else BOUND
        worse |= not error <= bound
        print(f"{name}: {error:.2f} ulp at {at!r}, bound {bound:g}", flush=True)
    return int(worse)


def worst(name: str, every: int, fast: bool = False) -> tuple[float, float]:
    """Return the largest error of a function over each `every`-th float32, and where it is."""
    kernel, exact, found = compiled(name, fast), exact_function(name), (0.0, 0.0)
    for x in chunks(every):
        with np.errstate(all="ignore"):
            error = errors(kernel(x), exact(x.astype("float64")))
        at = int(np.argmax(error))
        found = max(found, (float(error[at]), float(x[at])), key=lambda pair: pair[0])
    return found


def chunks(every: int) -> Iterator[np.ndarray]:
    """Yield float32 values of all bit patterns, each `every`-th."""
    for first in range(0, 1 << 32, CHUNK * every):
        bits = first + np.arange(CHUNK, dtype="uint64") * np.uint64(every)
        yield np.minimum(bits, (1 << 32) - 1).astype("uint32").view("float32")


def errors(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return errors in units in the last place of the exact values.

    Examples
    --------
    >>> errors(np.float32([1, 1 + 2**-23, 0]), np.float64([1, 1, 1e-40])).tolist()
    [0.0, 1.0, 0.0]
    """
    rounded = exact.astype("float32")
    unit = np.spacing(np.abs(rounded)).astype("float64")
    error = np.abs(got.astype("float64") - exact) / unit
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    flushed = (np.abs(exact) < SMALLEST) & (np.abs(got) <= SMALLEST)
    return np.asarray(np.where(same | flushed, np.where(np.isfinite(error) & ~flushed, error, 0.0),
                               np.where(np.isfinite(error), error, np.inf)))  # fmt: skip


def exact_function(name: str) -> Callable[[np.ndarray], Any]:
    """Return the function in float64."""
    from scipy import special

    known: dict[str, Callable[[np.ndarray], Any]] = {
        "Exp": np.exp, "Erf": special.erf, "Tanh": np.tanh, "Sigmoid": special.expit, "Log": np.log,
    }  # fmt: skip
    return known[name]


def compiled(name: str, fast: bool) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function as a kernel of this project computes it."""
    from onnx import TensorProto, helper

    import roller_tvm

    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [CHUNK]) for n in "xy")
    graph = helper.make_graph([helper.make_node(name, ["x"], ["y"])], "ulp", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    built = roller_tvm.compile(model, fast_math=fast)
    return lambda values: np.asarray(built(values))
