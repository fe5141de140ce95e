"""A process that builds a model one way and runs it; it may crash or hang. See `tuning.supervise`."""

from __future__ import annotations

import functools
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from roller_check.fuzz.ways import PLAINLY, Ways
from roller_tvm.internal import InternalError
from roller_tvm.tuning.model_report import KernelPlan
from roller_tvm.tuning.supervise import main

#: Parts of kernels' names that tell what was made of them.
MARKS = ("connected", "lstm", "gru", "rnn")
#: Inputs shifted by this share show where an answer jumps (a comparison, a rounding, an integer cast).
SHIFT = 1e-5
SHIFTED = 6
#: Share of a number that its last bit is: a sum of short numbers is rounded at each addition, as TVM does it.
LAST_BIT = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
#: Seconds of the processor that a call may take; onnxruntime has no end at some convolutions.
LIMITS_S = {"draw": 30.0}
LIMIT_S = 150.0
#: Turns of a timing, and the seconds of one.
TURNS, TURN_S = 8, 1e-3
#: Open extents that a model is run with, beside the one drawn.
OPEN_SIZES = (1, 3, 16, 33)


def hello() -> None:
    """Build one model either way: what a process loads once is no part of a model's time."""
    for schedules in ("tvm", "roller"):
        run(*_smallest(), schedules)


def _smallest() -> tuple[bytes, list[dict[str, np.ndarray]]]:
    from onnx import helper

    from roller_check.fuzz.generate import as_model

    x = {"x": np.ones((4, 8), "float32")}
    return as_model([helper.make_node("Exp", ["x"], ["y"])], x, {}, ["y"]).SerializeToString(), [x]


@functools.cache
def least() -> float:
    """Return the seconds that plain TVM takes for a model of one small kernel: it takes no less for any other."""
    return min(run(*_smallest(), "tvm")[1] for _ in range(2))


def draw(seed: int, opens: bool) -> tuple[bytes, dict[str, np.ndarray]]:
    """Return the model of a seed and its inputs."""
    from roller_check.fuzz.generate import random_model

    model, inputs = random_model(seed, opens)
    return model.SerializeToString(), inputs


def run(
    model: bytes, feeds: list[dict[str, np.ndarray]], schedules: str, ways: Ways = PLAINLY
) -> tuple[list[np.ndarray], float, list[str]]:
    """Return a model's answers to each of these inputs, the second time, the build's seconds, how kernels are made.

    A bug of a plan that ends in another choice, and a warning, is an error.

    The processor's seconds include compilers that were started; other work on the machine does not count.
    """
    import onnx

    import roller_tvm

    warnings.simplefilter("ignore")
    warnings.simplefilter("error", InternalError)
    with ways.taken():
        start = sum(os.times()[:4])
        built = roller_tvm.compile(onnx.load_model_from_string(model), schedules=schedules)
        seconds = sum(os.times()[:4]) - start
    answers = [np.array(a) for inputs in feeds for _, a in zip(built.run(inputs), built.run(inputs), strict=True)]
    return answers, seconds, used(built.report().plans)


def times(model: bytes, feeds: list[dict[str, np.ndarray]]) -> tuple[float, float]:
    """Return the seconds of a run on one thread, ours and plain TVM's: the least of many short turns.

    A turn is shorter than the system's slices of time, so that other work on the machine seldom falls into the least.
    """
    import onnx

    import roller_tvm

    warnings.simplefilter("ignore")
    own = onnx.load_model_from_string(model)
    built = [roller_tvm.compile(own, schedules=schedules, threads=1) for schedules in ("roller", "tvm")]
    least = [min(one.times(feeds[0], 1, 3)) for one in built]
    for _ in range(TURNS):
        for place, one in enumerate(built):
            number = max(1, int(TURN_S / least[place]))
            least[place] = min(least[place], *one.times(feeds[0], number, 3))
    return least[0], least[1]


def used(plans: Sequence[KernelPlan]) -> list[str]:
    """Return how the kernels of a model are made: recipes and marks of names, each once.

    Examples
    --------
    >>> used([KernelPlan("rnn_1", "planned", "2 blocks of 16 units"), KernelPlan("sort", "tvm")])
    ['rnn', 'tvm']
    >>> used([KernelPlan("dense", "planned", "cpu.direct l2(i=4) + cpu.tiled register(i=4 j=16)")])
    ['cpu.direct', 'cpu.tiled']
    """
    found = {word for plan in plans for word in (plan.plan or plan.how).replace(",", " ").split()}
    marks = {mark for mark in MARKS for plan in plans if mark in plan.kernel}
    return sorted({name for name in found if name == "tvm" or name.startswith("cpu.")} | marks)


def truth(model: bytes, inputs: dict[str, np.ndarray]) -> tuple[list[dict[str, np.ndarray]], list[np.ndarray]]:
    """Return inputs of all sizes and onnxruntime's answers to each."""
    import onnx

    from roller_check.fuzz.generate import session

    feeds, answers, made = list[dict[str, np.ndarray]](), list[np.ndarray](), session(model)
    for feed in of_sizes(onnx.load_model_from_string(model), inputs):
        try:
            answers += made.run(None, feed)
            feeds.append(feed)
        except Exception:  # of other sizes it is no model
            if feed is inputs:
                raise
    return feeds, answers


def moves(model: bytes, feeds: list[dict[str, np.ndarray]], answers: list[np.ndarray]) -> list[np.ndarray]:
    """Return how far each element of onnxruntime's answers moves if the inputs move a little."""
    from roller_check.fuzz.generate import session

    moved, made = [np.zeros(a.shape) for a in answers], session(model)
    each = len(answers) // len(feeds)
    with np.errstate(all="ignore"):
        for number, feed in enumerate(feeds):
            rng = np.random.default_rng(0)
            for _ in range(SHIFTED):
                near = made.run(None, {name: _shifted(value, rng) for name, value in feed.items()})
                for place, new in enumerate(near, number * each):
                    moved[place] = np.fmax(moved[place], np.abs(_numbers(new) - _numbers(answers[place])))
    return moved


def reference(model: bytes, feeds: list[dict[str, np.ndarray]]) -> list[np.ndarray]:
    """Return the answers of ONNX's own evaluator in numpy: another witness where plain TVM is none."""
    from onnx import load_model_from_string
    from onnx.reference import ReferenceEvaluator

    made = ReferenceEvaluator(load_model_from_string(model))
    with np.errstate(all="ignore"):
        return [np.asarray(answer) for feed in feeds for answer in made.run(None, feed)]


def of_sizes(model: Any, inputs: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """Yield inputs; of a model with an open extent, those of other sizes too."""
    yield inputs
    open_ = {
        (v.name, axis) for v in model.graph.input for axis, e in enumerate(v.type.tensor_type.shape.dim) if e.dim_param
    }
    for size in OPEN_SIZES if open_ else ():
        yield {
            name: np.resize(value, [size if (name, axis) in open_ else e for axis, e in enumerate(value.shape)])
            for name, value in inputs.items()
        }


def _shifted(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if "float" not in value.dtype.name:
        return value
    share = max(SHIFT, LAST_BIT.get(value.dtype.name, 0.0))
    return np.asarray(value * (1 + share * rng.standard_normal(value.shape)), value.dtype)


def _numbers(a: np.ndarray) -> Any:
    return np.nan_to_num(np.asarray(a, "float64"), nan=1e30)


def limited(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that ends its process by SIGPROF after its seconds of the processor: other work may run."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        signal.setitimer(signal.ITIMER_PROF, LIMITS_S.get(function.__name__, LIMIT_S))
        try:
            return function(*args)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    return call


if __name__ == "__main__":
    from roller_check.fuzz.cuda import kernels

    called: dict[str, Callable[..., Any]]
    called = {"hello": hello, "draw": draw, "run": run, "truth": truth, "moves": moves, "least": least,
              "reference": reference, "times": times, "cuda": kernels}  # fmt: skip
    main({name: limited(function) for name, function in called.items()})
