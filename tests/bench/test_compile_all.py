"""Everything compiled anew: what is kept of it, and from where an interrupted run goes on."""

import gzip
import json
from types import SimpleNamespace

import pytest

from roller_bench.figures import compile_all, main


@pytest.fixture
def script():
    return compile_all


def row(**more):
    kernel = {"predicted_registers": 64, "predicted_shared": 8192, "threads": 256, "sm_90": [32, 0, 8192]}
    return {"id": "C0", "device": "h200", "dtype": "float32", "rank": 0, "recipe": ["gpu.tiled"], "status": "ok",
            "variant": "", "build_s": 0.5, "kernels": [kernel], **more}  # fmt: skip


def test_what_is_kept(script, tmp_path):
    text = json.dumps(row()) + "\n"
    (tmp_path / "nvrtc_of_relay").mkdir()
    (tmp_path / "nvrtc_of_relay/h200.jsonl").write_text(text)
    runs = [run for run in script.RUNS if run.name == "h200"]
    script.write(tmp_path, tmp_path, runs, 2, {"relay": "nvrtc of relay"})
    totals, lines = ((tmp_path / name).read_text() for name in ("compiled_operators.txt", "resources.txt"))
    assert "compile-operators --device h200 --archs sm_90 --top 2 --out h200.jsonl    (nvrtc of relay)" in totals
    assert "1 plans of 1 operators, planned for h200, float32: 1 ok" in totals
    assert "C0  #1    gpu.tiled" in lines and "1 kernels of 1 operators compiled for sm_90" in lines
    assert gzip.decompress((tmp_path / "compiled_h200.jsonl.gz").read_bytes()).decode() == text


def test_other_code_begins_anew(script, tmp_path):
    paths = ("roller_tvm/planner/other.py", "roller_tvm/device/data/a.toml", "python/roller_bench/figures/compiling.py",
             "python/roller_osdi22_operators.csv")  # fmt: skip
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / paths[-1]).write_text("")
    seen = {script.state(tmp_path)}
    for path in paths:
        (tmp_path / path).write_text("1")
        seen.add(script.state(tmp_path))
    assert len(seen) == 1 + len(paths)


@pytest.fixture
def asked(script, monkeypatch, tmp_path):
    """Commands that were run, each of which ends with `code`."""
    runs = SimpleNamespace(words=[], code=1)

    def run(words, cwd, env):
        runs.words.append(words)
        return SimpleNamespace(returncode=runs.code)

    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "state", lambda root: "code")
    monkeypatch.setattr(script, "compiler_of", lambda line: f"nvrtc of {line}")
    monkeypatch.setattr(script.subprocess, "run", run)
    return runs


def test_every_run_is_a_command_of_its_line(script, asked, tmp_path, capsys):
    assert main(["compile-all", "--only", "a100,relax_h200_float16"]) == 1
    assert [words[0] for words in asked.words] == [".venv/relay/bin/python", ".venv/relax/bin/python"]
    assert asked.words[1][-1] == str(tmp_path / "build/compiled/code/nvrtc_of_relax/relax_h200_float16.jsonl")
    assert "not as they should be: a100, relax_h200_float16" in capsys.readouterr().err


def test_nothing_is_written_of_a_run_that_broke_off(script, asked, monkeypatch):
    written = []
    monkeypatch.setattr(script, "write", lambda *given: written.append(given))
    assert main(["compile-all"]) == 1 and len(asked.words) == len(script.RUNS) and not written
    asked.code = 0
    assert main(["compile-all"]) == 0 and len(written) == 1


def test_what_is_missing_is_told_with_its_remedy(script, monkeypatch, tmp_path, capsys):
    assert main(["compile-all", "--only", "a100,h100"]) == 2
    assert "'h100'" in capsys.readouterr().err
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "state", lambda root: "code")
    assert main(["compile-all"]) == 1
    assert "make venv" in capsys.readouterr().err
