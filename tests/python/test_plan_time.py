"""Planning times: the script runs, and says which operators got fewer plans."""

import json

from python.plan_time import main
from python.timing import BLOCK, interleaved


def test_summary(tmp_path, capsys):
    file = tmp_path / "few.csv"
    file.write_text("id,operator,params\nA,matmul,m=64 n=64 k=64\nB,relu,shape=8\n")
    assert main([str(file), "--devices", "v100", "--top", "10", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["v100"]
    assert data["operators"] == 2 and 0 < data["median_ms"] <= data["max_ms"]
    assert data["fewer_plans"] == ["B"]


def test_functions_are_called_in_turns():
    calls = []
    times = interleaved({name: lambda n=name: calls.append(n) for name in "ab"}, 0.0, pinned=lambda name: False)
    assert {name: len(t) for name, t in times.items()} == {"a": 2 * BLOCK, "b": 2 * BLOCK}
    turns = [name for name, before in zip(calls, [None, *calls], strict=False) if name != before]
    assert turns == ["a", "b", "a", "b"]
