"""Learning from files: of operators that are not the one ranked, and only from files that say the same things."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("xgboost")

from roller_bench.learned import NAMES, labels_of, plan_features, rank_plans, read_measured, train_measured
from roller_bench.search import Online, every_plan
from roller_tvm.cli import main
from roller_tvm.device import device_for_target
from roller_tvm.errors import BadInput
from roller_tvm.ir.operators import operator
from roller_tvm.planner import construct

from ..plan.devices import device

TARGET = "llvm -mcpu=skylake-avx512 -num-cores=4"
CPU = device_for_target(TARGET)


def seconds(ranked):
    """A machine on which narrow register tiles are fast, which no model of ours says."""
    program = ranked.plan.programs[0]
    return 1e-6 * program.tile("register")["n"] if program.recipe == "cpu.tiled" else 1e-3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("work")
    for size in (64, 96, 128):
        online = Online(every_plan(operator("matmul", m=size, n=size, k=64), CPU), CPU, 16)
        list(online.run(32, lambda plans: [seconds(p) if n else math.inf for n, p in enumerate(plans)]))
        (place / f"measured.{size}.json").write_text(json.dumps(online.kept(f"matmul {size}")))
    return place


@pytest.mark.parametrize("objective", ["rank", "regression"])
def test_what_is_learned_of_others_ranks_another(folder, objective):
    model = train_measured(read_measured([folder]), objective, leave_out="matmul 128")
    plans = list(construct(operator("matmul", m=128, n=128, k=64), CPU, 10).plans)
    ranked = [seconds(p) for p in rank_plans(plans, CPU, model)]
    assert len(set(ranked)) > 1  # there is an order to be learned
    assert np.mean(ranked[:5]) < np.mean(ranked[5:])


def test_the_command(folder, capsys):
    words = ["plan", "matmul", "m=128", "n=128", "k=64", "--target", TARGET, "--json"]
    assert main(words) == 0
    before = json.loads(capsys.readouterr().out)["plans"]
    assert main([*words, "--rank-by", "xgboost", "--measured", str(folder)]) == 0
    after = json.loads(capsys.readouterr().out)["plans"]
    assert after != before and sorted(map(str, after)) == sorted(map(str, before))
    assert main([*words, "--rank-by", "xgboost"]) == 2
    gpu = ["plan", "matmul", "m=64", "n=64", "k=64", "--device", "a100", "--rank-by", "xgboost", "--measured", "."]
    assert main(gpu) == 2


def test_files_are_read_as_they_were_written(folder):
    found = read_measured([folder / "measured.64.json"])[0]
    assert found.operator == "matmul 64" and found.rows.shape == (len(found.seconds), len(NAMES))
    assert np.isinf(found.seconds).any() and set(labels_of(found.seconds)) >= {0.0, 1.0}
    plan = construct(operator("matmul", m=64, n=64, k=64), CPU, 1).best
    assert plan_features(plan, CPU).shape == found.rows[0].shape


def test_mistakes(folder, tmp_path):
    measured = read_measured([folder / "measured.64.json"])
    with pytest.raises(BadInput, match="nothing to learn"):
        train_measured(measured, leave_out="matmul 64")
    with pytest.raises(BadInput, match="holds no measurements"):
        read_measured([tmp_path])
    with pytest.raises(BadInput, match="measured on .* threads, the plans are for .* units"):
        read_measured([folder], device("a100"))
    with pytest.raises(BadInput, match="the plans are for Another"):  # every CPU is called 'cpu'
        read_measured([folder], replace(CPU, title="Another"))
    other = json.loads((folder / "measured.64.json").read_text())
    other["names"][3] = "colour"
    (tmp_path / "measured.1.json").write_text(json.dumps(other))
    with pytest.raises(BadInput, match="other features"):
        read_measured([tmp_path])
    (tmp_path / "measured.1.json").write_text("{")
    with pytest.raises(BadInput, match="no file of measurements"):
        read_measured([tmp_path])


def test_the_operator_itself_is_left_out_however_it_is_written(folder):
    measured = replace(read_measured([folder / "measured.64.json"])[0], operator="matmul m=64 n=64 k=64")
    with pytest.raises(BadInput, match="nothing to learn"):
        train_measured([measured], leave_out="matmul k=64 layout=NN n=64 m=64")
