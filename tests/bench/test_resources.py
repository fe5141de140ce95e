"""The script that prints predicted resources beside compiled ones."""

import json

import pytest

from roller_bench.figures import main


def kernel(registers, archs):
    return {"predicted_registers": 64, "predicted_shared": 8192, "threads": 256,
            **{a: [registers, 0, 8192] for a in archs}}  # fmt: skip


@pytest.fixture
def file(tmp_path):
    rows = [
        {"id": "A", "device": "a100", "rank": 0, "recipe": ["gpu.tiled"], "status": "ok",
         "kernels": [kernel(32, ["sm_90", "sm_100"])]},
        {"id": "A", "device": "a100", "rank": 1, "recipe": ["gpu.tiled"], "status": "ok",
         "kernels": [kernel(64, ["sm_90"])]},
        {"id": "B", "device": "a100", "rank": 0, "recipe": ["gpu.tiled"], "status": "spills", "error": "too many"},
    ]  # fmt: skip
    path = tmp_path / "compiled.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def test_table_and_errors(file, capsys):
    assert main(["resources", str(file), "--arch", "sm_90"]) == 0
    out = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    # Of a unit's 65536 registers 256 threads take 16384 each block as predicted, 8192 as compiled; threads allow 8.
    assert "A #1 gpu.tiled 256 64 | 32 8192 | 8192 4 | 8 threads 0" in lines
    assert any(line.startswith("A #2") for line in lines) is False
    assert "2 kernels, every plan: 0 with local memory; plans by outcome: 2 ok, 1 spills" in lines
    assert "registers 1.00 1.00 1.00 1.00 2.00 2.00 2.00 0.50 50%" in lines
    assert "B#1 spills: too many" in lines
    assert main(["resources", str(file), "--all"]) == 0
    out = capsys.readouterr().out
    # Newer architectures after older ones, by number.
    assert out.index("compiled for sm_90") < out.index("compiled for sm_100") and "A   #2" in out


def test_an_architecture_that_is_not_there(file, capsys):
    assert main(["resources", str(file), "--arch", "sm_75"]) == 2
    assert "there are sm_90, sm_100" in capsys.readouterr().err
