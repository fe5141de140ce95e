"""Both lines operator by operator: in turn, going on where it was, and ending with what it started."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from roller_bench.cases import load_suite
from roller_bench.figures import both_lines, main
from roller_bench.results import Results, Tuned

COMMAND = [sys.executable, "-m", "roller_bench"]
#: This process's modules, for another.
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
#: Stands for a line's interpreter: says what it was asked, waits where the test says so, exits as the test says.
FAKE = """#!{python}
import os, sys, time
words = sys.argv[1:]
if words[0] == "-c":
    sys.exit({lacks!r})  # 0, or what is written to stderr
named = "--only", "--line", "--again"
asked = " ".join(w for n, w in enumerate(words) if w == "--report" or words[n - 1] in named)
with open({log!r}, "a") as log:
    log.write(asked + "\\n")
if "--report" in asked:
    out = words[words.index("--output") + 1]
    os.makedirs(out, exist_ok=True)
    for name in ("table.txt", "table.md"):
        with open(os.path.join(out, name), "w") as file:
            file.write(name[:5] + " of " + words[words.index("--line") + 1] + "\\n")
if "slow" in asked:
    with open({log!r} + ".pid", "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)
sys.exit({code})
"""


@pytest.fixture
def place(tmp_path):
    suite = tmp_path / "own.csv"
    suite.write_text("id,operator,params\nfirst,relu,shape=8\nsecond,relu,shape=9\n")

    def make(code=0, lacks=0):
        python, log = tmp_path / "python", tmp_path / "log"
        python.write_text(FAKE.format(python=sys.executable, log=str(log), code=code, lacks=lacks))
        python.chmod(0o755)
        return [*COMMAND, "compare-lines", str(tmp_path / "out"), "--suite", str(suite), "--relay", str(python),
                "--relax", str(python)], log  # fmt: skip

    return make


def test_one_operator_wholly_before_the_next(place, tmp_path):
    command, log = place()
    assert subprocess.run(command, env=ENV, check=False, capture_output=True).returncode == 0
    told = log.read_text().splitlines()
    first = ["relay first", "relax first", "relay --report", "relax --report"]
    assert told == first + [line.replace("first", "second") for line in first]
    for name in ("summary.txt", "summary.md"):
        assert (tmp_path / "out" / name).read_text() == "table of relay\n\ntable of relax\n"


def test_the_summary_keeps_the_line_that_was_not_asked_for(place, tmp_path):
    command, log = place()
    for lines in ("relay", "relax"):
        assert subprocess.run([*command, "--lines", lines], env=ENV, check=False, capture_output=True).returncode == 0
    assert log.read_text().splitlines()[-1] == "relax --report"
    assert (tmp_path / "out" / "summary.txt").read_text() == "table of relay\n\ntable of relax\n"


def test_what_is_done_is_not_even_looked_at(place, tmp_path):
    command, log = place()
    first, second = load_suite(str(tmp_path / "own.csv"))
    for line, case in (("relay", first), ("relax", first), ("relay", second)):
        results = Results(tmp_path / "out" / line / "results.jsonl")
        for label in both_lines.TUNERS[line].format(peers=1000, searches=200).split(","):
            results.add(Tuned(case.digest, label, "ok"))
    assert subprocess.run(command, env=ENV, check=False, capture_output=True).returncode == 0
    assert log.read_text().splitlines() == ["relax second", "relay --report", "relax --report"]
    log.unlink()
    assert subprocess.run([*command, "--retry"], env=ENV, check=False, capture_output=True).returncode == 0
    assert log.read_text().splitlines()[:2] == ["relay first", "relax first"]


def test_it_does_not_begin_without_what_peers_learn_with(place):
    command, log = place(lacks="Traceback\nOSError: libgomp.so.1: no such file")
    done = subprocess.run(command, env=ENV, check=False, capture_output=True, text=True)
    assert done.returncode != 0 and "cannot learn: OSError: libgomp.so.1" in done.stderr and not log.exists()
    done = subprocess.run([*command, "--relay", "/nowhere"], env=ENV, check=False, capture_output=True, text=True)
    assert done.returncode != 0 and "/nowhere" in done.stderr and "Traceback" not in done.stderr


def test_again_is_for_what_there_is_and_not_for_what_was_just_done(place, tmp_path, monkeypatch):
    monkeypatch.setattr(both_lines, "commit", lambda: "0123456789")
    command, log = place()
    folder = tmp_path / "out"
    first = load_suite(str(tmp_path / "own.csv"))[0]
    results = Results(folder / "relay" / "results.jsonl")
    results.add({"id": "before", "commit": "9876543210"})
    results.add({"id": "now", "commit": "0123456789"})
    results.add(Tuned(first.digest, "roller:1", "ok", environment="before"))
    results.add(Tuned(first.digest, "roller:10", "ok", environment="now"))
    results.add(Tuned(first.digest, "ansor:64", "ok", environment="before"))
    assert main([*command[3:], "--again", "roller,ansor"]) == 0
    told = [line for line in log.read_text().splitlines() if "--report" not in line]
    assert [sorted(line.split()) for line in told] == [
        sorted(["relay", "first", "roller:1,ansor:64"]), ["first", "relax"], ["relay", "second"], ["relax", "second"],
    ]  # fmt: skip
    log.unlink()
    assert main([*command[3:], "--again", "hope"]) != 0 and not log.exists()


def test_what_is_left_is_said(place):
    command, log = place(code=1)
    assert subprocess.run(command, env=ENV, check=False, capture_output=True).returncode == 1
    assert subprocess.run([*command, "--seconds", "0"], env=ENV, check=False, capture_output=True).returncode == 1
    assert log.read_text().count("relay first") == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes that die with their parent")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_it_takes_along_what_it_started(place, tmp_path, how):
    (tmp_path / "own.csv").write_text("id,operator,params\nslow,relu,shape=8\n")
    command, log = place()
    process = subprocess.Popen(command, env=ENV, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    noted = Path(f"{log}.pid")
    until = time.monotonic() + 120
    while not (noted.exists() and noted.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    child = int(noted.read_text())
    process.send_signal(how)
    assert process.wait(120) == (130 if how == signal.SIGTERM else -how)
    while time.monotonic() < until:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{child}/stat").read_text().split()[2] == "Z":  # nobody has asked how it ended
            return
        time.sleep(0.05)
    pytest.fail("the comparison goes on alone")


def test_how_far_it_is(place, tmp_path):
    command, _ = place()
    case = load_suite(str(tmp_path / "own.csv"))[0]
    folder = tmp_path / "out" / "relay"
    Results(folder / "results.jsonl").add(Tuned(case.digest, "roller:1", "ok", seconds=2.0))
    curve = folder / "work" / f"{case.digest}.ansor" / "curve.1000.jsonl"
    curve.parent.mkdir(parents=True)
    curve.write_text(json.dumps([70.0, 64, 1e-5]) + "\n")
    done = subprocess.run([*command, "--status"], env=ENV, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    first, second, third, *_, last = done.stdout.splitlines()
    assert first.split(maxsplit=2) == [
        "first", "relay", "roller:1 ok 2 s, ansor:1000 64 trials so far 70 s, 4 to do"
    ]  # fmt: skip
    assert second.split(maxsplit=1) == ["relax", "to do"] and third.split(maxsplit=2) == ["second", "relay", "to do"]
    assert last == "relay: 0 of 2 done, relax: 0 of 2 done"


#: Stands for a line's interpreter, asked for whole models.
FAKE_MODELS = """#!{python}
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
    fake.write_text(FAKE_MODELS.format(python=sys.executable, log=str(log), code=code))
    os.chmod(fake, 0o755)
    command = [*COMMAND, "compare-models", tmp_path / "out", "--models", "one,two.onnx", "--relay", fake,
               "--relax", fake, "--peers", "30", "--again", "times", "--mix-machines"]  # fmt: skip
    done = subprocess.run(list(map(str, command)), env=ENV, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    searched = ("relay", "ansor:30"), ("relax", "metaschedule:30")
    wanted = []
    for model in ("one", "two.onnx"):
        wanted += [f"{line} {model} {tuner} times mixed" for line, tuner in searched]
        wanted += [f"{line} {both_lines.MODELS},one,two.onnx {tuner} report" for line, tuner in searched]
    assert log.read_text().splitlines() == wanted
    assert (tmp_path / "out/summary.md").read_text() == "table of relay\n\ntable of relax\n"
