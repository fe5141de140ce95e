"""Whole models on a card: the table of results, and a machine without a card."""

import json
import subprocess

import pytest

from roller_bench.figures.card_models import table
from roller_tvm.children import environment, python

ROWS = [{"model": "a", "ours": 1.0, "eager": 2.0, "graph": 0.5, "relative_error": 1e-6},
        {"model": "b", "ours": 2.0, "eager": 16.0, "graph": 4.0, "relative_error": 2e-6},
        {"model": "c", "error": "refused", "eager": 3.0, "graph": 1.0}]  # fmt: skip


def test_a_ratio_above_one_means_that_ours_is_faster():
    told = table(ROWS).splitlines()
    assert told[2] == "| a | 1.000 | 2.00 | 0.50 |  | 1e-06 |" and told[3] == "| b | 2.000 | 8.00 | 2.00 |  | 2e-06 |"
    assert told[4].startswith("| c | refused |")
    assert told[5:] == ["eager: geometric mean 4.00 of 2", "graph: geometric mean 1.00 of 2"]


def test_without_torch_or_a_card_nothing_is_claimed(tmp_path):
    out = tmp_path / "rows.jsonl"
    words = python("-m", "roller_bench", "card-models", "--models", "resnet18", "--out", str(out))
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False, timeout=120)
    if "build_s" in done.stdout:
        pytest.skip("there is a card")
    assert done.returncode == 1 and "resnet18: ended" in done.stdout
    assert not [json.loads(line) for line in out.read_text().splitlines()]
