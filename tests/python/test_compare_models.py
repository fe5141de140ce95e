"""Whole models on both lines: model by model, each on either line, reports of all after each."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "python" / "compare_models.py"
MODELS = runpy.run_path(str(SCRIPT))["MODELS"]
FAKE = """#!{python}
import os, sys
words = sys.argv[1:]
if words[0] == "-c":
    sys.exit(0)
value = {{w: words[n + 1] for n, w in enumerate(words[:-1]) if w.startswith("--")}}
with open({log!r}, "a") as log:
    log.write(" ".join([value["--line"], value["--models"], value["--tuners"].split(",")[-1],
                        "report" if "--report" in words else value.get("--again", ""),
                        "mixed" if "--mix-machines" in words else ""]).strip() + "\\n")
os.makedirs(value["--output"], exist_ok=True)
with open(os.path.join(value["--output"], "table.md"), "w") as table:
    table.write("table of " + value["--line"] + "\\n")
sys.exit({code})
"""


@pytest.mark.parametrize("code", [0, 1])
def test_model_by_model_on_either_line(tmp_path, code):
    fake, log = tmp_path / "python", tmp_path / "log"
    fake.write_text(FAKE.format(python=sys.executable, log=str(log), code=code))
    os.chmod(fake, 0o755)
    command = [sys.executable, SCRIPT, tmp_path / "out", "--models", "one,two.onnx", "--relay", fake, "--relax", fake,
               "--peers", "30", "--again", "times", "--mix-machines"]  # fmt: skip
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    searched = ("relay", "ansor:30"), ("relax", "metaschedule:30")
    wanted = []
    for model in ("one", "two.onnx"):
        wanted += [f"{line} {model} {tuner} times mixed" for line, tuner in searched]
        wanted += [f"{line} {MODELS},one,two.onnx {tuner} report" for line, tuner in searched]
    assert log.read_text().splitlines() == wanted
    assert (tmp_path / "out/summary.md").read_text() == "table of relay\n\ntable of relax\n"
