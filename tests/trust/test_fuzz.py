"""A fixed part of the fuzzer in every run, a new seed in the nightly one; its parts on made-up answers."""

import json
import time

import numpy as np
import pytest

pytest.importorskip("tvm")
pytestmark = pytest.mark.te

from roller_check.fuzz import command, history  # noqa: E402
from roller_check.fuzz.generate import random_model  # noqa: E402
from roller_check.fuzz.judge import Verdict, differs, judge, judge_times  # noqa: E402
from roller_check.fuzz.shrink import shrunk  # noqa: E402
from roller_check.fuzz.ways import Ways  # noqa: E402
from roller_check.fuzz.worker import _shifted, moves, reference, run, truth  # noqa: E402
from roller_tvm.tuning.supervise import Reply  # noqa: E402

#: Models of the fixed part: of one to five nodes, built in this process, each of them another way.
SEEDS = (10047, 10049, 10050, 10052)


@pytest.mark.one_line
@pytest.mark.parametrize("seed", SEEDS)
def test_a_few_models_are_right(seed):
    model, inputs = random_model(seed)
    data = model.SerializeToString()
    feeds, answers = truth(data, inputs)
    got, *_ = run(data, feeds, "roller", Ways.of_seed(seed))
    assert not differs(got, answers, moves(data, feeds, answers))


def test_a_seed_is_one_model_and_all_kinds_come():
    assert random_model(7)[0] == random_model(7)[0] != random_model(8)[0]
    kinds = {node.op_type for seed in range(150) for node in random_model(seed)[0].graph.node}
    assert len(kinds) > 60 and {"Conv", "ConvTranspose", "MatMul", "Softmax", "Gather", "ReduceSum"} <= kinds


def test_what_differs():
    one, still = np.float32([1, 2, np.nan]), np.zeros(3)
    assert not differs([one], [one], [still])
    assert "1 of 3 elements, at (1,) 2.5, not 2" in differs([np.float32([1, 2.5, np.nan])], [one], [still])
    assert not differs([np.float32([1, 2.5, np.nan])], [one], [np.array([0, 0.5, 0])])  # the model jumps there
    assert "not float32[3]" in differs([one[:2]], [one], [still])
    assert "1 of 3" in differs([np.float32([1, 2, 3])], [one], [still])


class Told:
    """A worker whose builds give made-up replies; the rest is computed here."""

    def __init__(self, ours, plain):
        self.builds = {"roller": ours, "tvm": plain}

    def call(self, name, args, limit_s):
        if name == "run":
            return self.builds[args[2]]
        functions = {"truth": truth, "moves": moves, "reference": reference, "least": lambda: 0.01}
        return Reply("ok", functions[name](*args))


def test_the_word_of_each_witness():
    from onnx import helper

    from roller_check.fuzz.generate import as_model

    x = np.float32([0.5, -1, 2])
    model = as_model([helper.make_node("Relu", ["x"], ["y"])], {"x": x}, {}, ["y"])
    right, odd = np.maximum(x, 0), x
    answer, dead = (lambda a, s=0.1: Reply("ok", ([a], s, []))), Reply("crash", text="SIGSEGV")
    refused = Reply("build error", text="no")
    for ours, plain, outcome in (
        (answer(right), dead, "right"),
        (answer(right, 2.0), answer(right), "right"),
        (answer(right, 2.3), answer(right), "slow build"),
        (answer(right, 2.3), answer(odd), "slow build"),
        (answer(odd), answer(right), "wrong"),
        (answer(odd), answer(odd), "as plain TVM"),
        (answer(odd), refused, "wrong"),  # by ONNX's own evaluator
        (answer(odd), answer(x + 1), "wrong"),
        (refused, answer(right), "error"),
        (refused, answer(odd), "as plain TVM"),  # neither is right
        (refused, refused, "as plain TVM"),
        (dead, refused, "crash"),
        (dead, dead, "as plain TVM"),
    ):
        assert judge(model, {"x": x}, Told(ours, plain)).outcome == outcome, (ours, plain)


def test_a_nan_that_is_not_kept_is_told_apart():
    """TVM's maximum of 0 and NaN is 0; another difference beside it counts."""
    from onnx import helper

    from roller_check.fuzz.generate import as_model

    x = np.float32([0.5, np.nan, 2])
    model = as_model([helper.make_node("Clip", ["x", "low"], ["y"])], {"x": x}, {"low": np.float32(0)}, ["y"])
    for ours, outcome in (([0.5, 0, 2], "as plain TVM"), ([0.5, 0, 1], "wrong"), ([0.5, np.nan, 2], "right")):
        told = Told(Reply("ok", ([np.float32(ours)], 0.1, [])), Reply("build error", text="no"))
        assert judge(model, {"x": x}, told).outcome == outcome, ours


@pytest.mark.parametrize(("dtype", "least"), [("float32", 0.0), ("float16", 1e-4)])
def test_a_short_number_moves_by_its_last_bit(dtype, least):
    x = np.ones(4096, dtype)
    moved = np.abs(_shifted(x, np.random.default_rng(0)).astype("float64") - 1)
    assert least < moved.mean() < least + 1e-3


def test_what_is_slower():
    model, inputs = random_model(3)
    for ours, plain, outcome in ((1e-5, 1e-6, "right"), (1e-4, 9.1e-5, "right"), (1e-4, 8e-5, "slower")):
        worker = Told(None, None)
        worker.call = lambda name, args, limit_s, told=(ours, plain): Reply("ok", told)
        assert judge_times(model, inputs, worker).outcome == outcome


def test_a_failure_is_shrunk_to_its_node():
    seed = next(s for s in range(200) if {"Erf", "MatMul"} <= {n.op_type for n in random_model(s)[0].graph.node})
    model, inputs = shrunk(*random_model(seed), lambda m, _: any(n.op_type == "Erf" for n in m.graph.node))
    assert [n.op_type for n in model.graph.node] == ["Erf"]


def test_results_are_resumed(tmp_path, monkeypatch, capsys):
    asked = []

    def judge(model, inputs, worker, ways):
        asked.append(model)
        return Verdict("wrong" if len(asked) == 1 else "right", "made up")

    monkeypatch.setattr(command, "judge", judge)
    monkeypatch.setattr(command, "draw", lambda seed, opens, worker: random_model(seed, opens))
    results = tmp_path / "fuzz.jsonl"
    words = ["--seed", "10011", "--models", "2", "--results", str(results), "--keep", str(tmp_path)]
    words += ["--history", str(tmp_path / "all.jsonl")]
    assert command.main(words) == 1
    first, count = capsys.readouterr().out, len(asked)
    assert "1 right, 1 wrong" in first and "seed 10011: wrong: made up" in first
    assert [json.loads(text)["seed"] for text in results.read_text().splitlines()] == [10011, 10012]
    assert command.main(words) == 1 and len(asked) == count and list(tmp_path.glob("*-10011.onnx"))
    words[1] = "10013"
    assert command.main(words) == 0
    (row,) = history.read(tmp_path / "all.jsonl")
    assert row["models"] == 4 and row["wrong"] == 1 and row["right"] == 3 and row["seeds"] == [[10011, 10014]]
    assert history.totals(tmp_path / "all.jsonl")[row["kind"]]["right"] == 3


def test_a_model_that_onnxruntime_cannot_draw_is_no_end():
    class Hanging:
        def call(self, name, args, limit_s):
            return Reply("build timeout", text="'draw' took more than 30.0 s")

    row = command.one(1, Hanging())
    assert row["outcome"] == "no truth" and "onnxruntime: 'draw' took more" in row["told"]


@pytest.mark.nightly
def test_new_models(tmp_path):
    seed = int(time.time())
    assert command.main(["--seed", str(seed), "--models", "300", "--keep", str(tmp_path)]) == 0, f"--seed {seed}"
