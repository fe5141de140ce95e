"""The figure of exploring beside tuning and TVM's own search: its pieces, and what it says of them."""

import math
from types import SimpleNamespace

import pytest

from roller_bench.figures import append_lines
from roller_bench.figures.explore import Comparison, words

MODEL = SimpleNamespace(path=None, inputs={})
EXPLORED = {"piece": "explore", "load": 0.5, "ended": True, "seconds": 10.0, "runs": 3,
            "curve": [[4.0, 0.0], [5.0, 3e-3], [6.0, 2.5e-3], [7.0, 2e-3]]}  # fmt: skip
TUNED = {"piece": "tune", "load": 0.5, "ended": True, "seconds": 60.0}
SERVED = {"piece": "serve", "load": 0.5, "ended": True, "serving": 1.1, "sites": 1.01}


def searched(trials, asked_s):
    return {"piece": "search", "load": 0.5, "ended": True, "asked_s": asked_s, "wall_s": asked_s, "trials": trials,
            "of": 200, "peer": "ansor", "seconds": asked_s - 1, "reason": "", "kernel": "k.json"}  # fmt: skip


def timed(**more):
    return {"piece": "time", "load": 0.5, "ended": True, "build_s": 2.0, "start": 4e-3, "explored": 3e-3,
            "tuned": 3.1e-3, **more}  # fmt: skip


@pytest.fixture
def comparison(tmp_path):
    def made(rows, search_s=0.0):
        (tmp_path / "pieces.jsonl").unlink(missing_ok=True)
        list(append_lines(tmp_path / "pieces.jsonl", rows))
        return Comparison(MODEL, tmp_path, 10, 30, search_s)

    return made


def test_a_longer_search_is_timed_again(comparison):
    rows = [EXPLORED, TUNED]
    assert comparison(rows).next == "time", "no search was asked for"
    assert comparison(rows, 60.0).next == "search"
    rows += [searched(50, 60.0), timed(search=5e-3), SERVED]
    assert comparison(rows, 60.0).next == ""
    assert comparison(rows, 120.0).next == "search"
    assert comparison([*rows, searched(90, 120.0)], 120.0).next == "time"
    assert comparison([*rows, searched(200, 120.0), timed(search=5e-3)], 900.0).next == "", "its trials are done"


@pytest.mark.parametrize(("goal", "seconds"), [(5e-3, 0.0), (3.6e-3, 6.0), (3e-3, 7.0), (1e-3, math.nan)])
def test_when_exploring_was_as_fast_as_the_search(comparison, goal, seconds):
    made = comparison([EXPLORED, TUNED, searched(50, 60.0), timed(search=goal), SERVED], 60.0)
    assert made.row()["reached"] == pytest.approx(seconds, nan_ok=True)
    text = words({"m": made.row()})
    assert ("never" if math.isnan(seconds) else f"{seconds:.1f}") in text and "50/200" in text
    assert "0.17" in text, "explore s / tune s"
