"""The whole run against a driver that is made up: verdicts, hangs and crashes survived, the budget kept, the report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from roller_bench.kit.build import copy_runner
from roller_tvm.device.cpu_bench import find_compiler
from roller_tvm.device.load import load_file

from .made_up_kit import add_graph, make_kit

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "python" / "roller_bench" / "kit" / "gpu_kit.py"
pytestmark = pytest.mark.skipif(not find_compiler(), reason="needs a C compiler")


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    path = tmp_path_factory.mktemp("driver") / "libmadeup.so"
    source = Path(__file__).with_name("made_up_driver.c")
    subprocess.run([find_compiler(), "-shared", "-fPIC", "-O1", "-w", "-o", path, source], check=True)
    return path


def run(kit, out, driver, *words, torch=False, **environment):
    """(exit code, what it printed, results)."""
    words += () if torch else ("--no-torch",)
    command = [sys.executable, SCRIPT, kit, "--out", out, "--driver", driver, *words]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=300, env={**os.environ, **environment}
    )
    file = out / "results.json"
    return done.returncode, done.stdout + done.stderr, json.loads(file.read_text()) if file.exists() else None


def verdicts(results, name):
    return [p.get("verdict") for p in results["operators"][f"{name}.float32"]["plans"].values()]


def why(results, name, rank=0):
    return results["operators"][f"{name}.float32"]["plans"][str(rank)]["why"]


def test_all_is_well(driver, tmp_path):
    plans = {"E1": [f"right us={us}" for us in (20, 10, 40, 50)], "E2": ["right us=7"]}
    kit = make_kit(tmp_path / "kit", plans)
    code, said, results = run(kit, tmp_path / "out", driver)
    assert code == 0 and results["status"] == "done", said
    assert verdicts(results, "E1") == ["right"] * 4 and verdicts(results, "E2") == ["right"]
    plan = results["operators"]["E1.float32"]["plans"]["1"]
    # The card's own time: launching costs this process some 20 us, of which little may show where it is interrupted.
    assert 10 <= plan["us"]["median"] < 13 and plan["error"] == 0 and plan["us"]["count"] >= 5
    assert results["card"]["name"] == "NVIDIA Made Up" and 2.5 <= results["floor_us"] < 5
    table = (tmp_path / "out/table.md").read_text()
    assert "| E1.float32 | direct #1 | 10.0 | 20.0 | 10.0 | 4 |" in table
    assert "| relu float32 | 2 | 5 |  | " in table and " | 2.00 | " in table, "the regret of the first plan"
    ElementTree.parse(tmp_path / "out/plot.svg")
    # A card that does every benchmark in the same time is not believed; what the driver tells of it is.
    assert results["profile"]["refused"] and "not believed" in said
    spec = load_file(tmp_path / "out/device.toml")
    assert (spec.units, spec.arch, spec.source) == (132, "sm_90", "estimated")
    assert spec.peak("float16", tensor=True) == pytest.approx(results["profile"]["tensor"]["float16"])


def test_a_graph_fused_beside_its_operators_one_by_one(driver, tmp_path):
    """Two kernels of two images against one; a fused kernel that differs from them by more than roundings is wrong."""
    kit = make_kit(tmp_path / "kit", {"E1": ["right us=7", "near"]})
    add_graph(kit, "F0", ["near us=5", "right us=6", "right us=9"])
    add_graph(kit, "F1", ["wrong us=5", "right us=6", "right us=9"])
    code, said, results = run(kit, tmp_path / "out", driver)
    assert code == 1 and results["status"] == "done", said
    assert verdicts(results, "F0") == ["right", "right"] and verdicts(results, "F1") == ["wrong", "right"]
    assert verdicts(results, "E1") == ["right", "wrong"], "an operator's own sums are exact"
    plans = results["operators"]["F0.float32"]["plans"]
    assert [plans[n]["kernels"] for n in "01"] == [1, 2]
    assert 5 <= plans["0"]["us"]["median"] < 8 and 15 <= plans["1"]["us"]["median"] < 18
    table = (tmp_path / "out/table.md").read_text()
    assert "| F0.float32 model=made_up | 2 | 1 | 15.0 | 5.0 | 3.00x | 2.00x |" in table
    assert "| F1.float32 model=made_up | 2 | 1 |  |  |  | 2.00x |" in table


def test_operators_one_by_one_are_held_against_a_cpu(driver, tmp_path):
    kit = make_kit(tmp_path / "kit", {})
    add_graph(kit, "F0", ["right us=5", "right us=6", "right us=9"], off=0.5)
    code, _, results = run(kit, tmp_path / "out", driver)
    assert code == 1 and verdicts(results, "F0") == ["failed", "failed"]
    assert "by TVM's own kernels on a CPU" in why(results, "F0")


def test_a_kernel_that_is_right_only_once_is_wrong(driver, tmp_path):
    kit = make_kit(tmp_path / "kit", {"E1": ["once", "right"]})
    code, _, results = run(kit, tmp_path / "out", driver)
    assert code == 1 and verdicts(results, "E1") == ["wrong", "right"]
    assert "not when launched again" in why(results, "E1")


def test_what_goes_wrong_is_told_and_the_others_are_measured(driver, tmp_path):
    kit = make_kit(tmp_path / "kit", {
        "E1": ["wrong", "right"], "E2": ["short", "over", "right"], "E3": ["die", "right"], "E4": ["fault", "right"],
        "E5": ["hang", "right"], "E6": ["no image", "refused", "right"], "E7": ["right"],
    })  # fmt: skip
    code, said, results = run(kit, tmp_path / "out", driver, "--silence", "4")
    assert code == 1 and results["status"] == "done", said
    assert verdicts(results, "E1") == ["wrong", "right"] and "off by" in why(results, "E1")
    assert verdicts(results, "E2") == ["wrong", "wrong", "right"]
    assert "never written" in why(results, "E2", 0) and why(results, "E2", 1) == "wrote behind the end of y"
    assert verdicts(results, "E3") == ["failed", "right"] and "signal 6 (at E3.float32#0)" in why(results, "E3")
    assert verdicts(results, "E4") == ["failed", "right"] and "ILLEGAL_ADDRESS" in why(results, "E4")
    assert verdicts(results, "E5") == ["failed", "right"] and "hung" in why(results, "E5")
    assert verdicts(results, "E6") == ["failed", "failed", "right"] and "OUT_OF_RESOURCES" in why(results, "E6", 1)
    assert verdicts(results, "E7") == ["right"] and len(results["lost"]) == 5
    table = (tmp_path / "out/table.md").read_text()
    assert "- E5.float32#0 failed: hung: no word for 4 s, killed (at E5.float32#0)" in table


def test_a_reference_that_is_wrong_on_the_card_judges_nothing(driver, tmp_path):
    kit = make_kit(tmp_path / "kit", {"E1": ["right", "right"]})
    code, _, results = run(kit, tmp_path / "out", driver, MADE_UP_REFERENCE="sevens")
    assert code == 1 and verdicts(results, "E1") == ["failed", "failed"]
    assert all("no reference: element" in why(results, "E1", rank) for rank in (0, 1))


def test_an_operator_that_loses_the_card_twice_is_left(driver, tmp_path):
    kit = make_kit(tmp_path / "kit", {"E1": ["right", "die", "die", "right", "right"], "E2": ["right"]})
    code, _, results = run(kit, tmp_path / "out", driver)
    assert code == 1 and verdicts(results, "E1") == ["right", "failed", "failed", "skipped", "skipped"]
    assert verdicts(results, "E2") == ["right"]


@pytest.mark.nightly
def test_the_time_is_kept(driver, tmp_path):
    kit = make_kit(tmp_path / "kit", {f"E{n}": ["right", "hang"] for n in range(9)})
    code, _, results = run(kit, tmp_path / "out", driver, "--seconds", "16", "--silence", "3")
    assert sum(results["seconds"].values()) < 25, "it ends, with what it has"
    seen = [v for n in range(9) for v in verdicts(results, f"E{n}")]
    # The best plan of each first; how far the others come is the machine's affair.
    assert "right" in seen and seen.count("failed") < 9 and None in seen
    assert code == 1 and "not reached" in (tmp_path / "out/table.md").read_text()


def test_a_driver_too_old_for_the_kit_says_so_at_once(driver, tmp_path):
    kit = make_kit(tmp_path / "kit", {f"E{n}": ["right", "right"] for n in range(9)})
    code, said, results = run(kit, tmp_path / "out", driver, MADE_UP_OLD="1")
    assert code == 2 and "runs none of its kernels, made by by hand" in said and "NO_BINARY_FOR_GPU" in said, said
    assert "older compiler" in said and results["status"] in said and len(results["lost"]) == 2


def test_a_card_that_another_process_fills_is_not_taken_for_an_old_driver(driver, tmp_path):
    kit = make_kit(tmp_path / "kit", {"E1": ["right"]})
    code, said, results = run(kit, tmp_path / "out", driver, MADE_UP_FULL="1")
    assert code == 1 and "runs none of its kernels" not in said, said
    assert "OUT_OF_MEMORY" in results["status"] and "the card's memory" in results["status"]


def test_no_device(driver, tmp_path):
    kit = make_kit(tmp_path / "kit", {"E1": ["right"]})
    code, said, results = run(kit, tmp_path / "out", driver, MADE_UP_NO_DEVICE="1")
    assert code == 0 and results["status"] == "no device" and "no device: cuInit failed: CUDA_ERROR_NO_DEVICE" in said
    code, said, _ = run(kit, tmp_path / "out2", tmp_path / "libnothing.so")
    assert code == 0 and "no device: no CUDA driver" in said


@pytest.mark.nightly
def test_a_driver_that_never_answers_is_not_taken_for_no_device(driver, tmp_path):
    kit = make_kit(tmp_path / "kit", {"E1": ["right"]})
    code, said, _ = run(kit, tmp_path / "out", driver, "--seconds", "12", MADE_UP_HANGS="1")
    assert code == 1 and "no answer from the driver: time is up (the driver)" in said


def test_no_kit_or_none_for_the_card(driver, tmp_path):
    code, said, _ = run(tmp_path, tmp_path / "out", driver)
    assert code == 2 and "is no GPU kit" in said and "make gpu-kit" in said
    kit = make_kit(tmp_path / "kit", {"E1": ["right"]}, archs=("sm_80", "sm_90"))
    code, said, _ = run(kit, tmp_path / "out", driver, MADE_UP_ARCH="75")
    assert code == 2 and "sm_80, sm_90" in said and "sm_75" in said
    code, _, results = run(kit, tmp_path / "out2", driver, MADE_UP_ARCH="86")
    assert code == 0 and results["arch"] == "sm_80"
    (kit / "sm_90" / "E1.float32.zip").write_bytes(b"half a file")
    code, said, _ = run(kit, tmp_path / "out3", driver)
    assert code == 2 and "E1.float32.zip" in said and "make gpu-kit" in said


def test_fused_blocks_do_not_wait_on_a_card_with_fewer_units(driver, tmp_path):
    kit = make_kit(tmp_path / "kit", {})
    add_graph(kit, "F0", ["near us=5", "right us=6", "right us=9"])
    _, _, results = run(kit, tmp_path / "out", driver, MADE_UP_UNITS="114")
    assert verdicts(results, "F0") == ["skipped", "right"]
    assert "on 132 units, this card has 114: make a kit for it" in why(results, "F0")


def test_an_archive_that_cannot_be_read_costs_itself_alone(driver, tmp_path):
    kit = make_kit(tmp_path / "kit", {"E1": ["right us=7"], "E2": ["right us=7"]})
    broken = next(p for p in sorted(kit.glob("sm_90/*.zip")) if "E2" in p.name)
    broken.write_bytes(broken.read_bytes()[:100])
    code, said, results = run(kit, tmp_path / "out", driver)
    assert verdicts(results, "E1") == ["right"] and "E2.float32" not in results["operators"]
    assert [u["file"] for u in results["unread"]] == [broken.name] and broken.name in said
    assert code == 0 and results["status"] == "done"


def test_earlier_results_of_a_card_are_kept(driver, tmp_path):
    kit = make_kit(tmp_path / "kit", {"E1": ["right us=7"]})
    run(kit, tmp_path / "out", driver)
    _, said, results = run(kit, tmp_path / "out", driver, MADE_UP_NO_DEVICE="1")
    assert results["card"] is None and "the earlier results are now" in said
    assert json.loads((tmp_path / "out/results.1.json").read_text())["card"]["units"] == 132


def test_a_report_of_nothing_says_so(tmp_path):
    words = [sys.executable, str(SCRIPT), "--report", "--out", str(tmp_path / "nowhere")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2 and "results.json cannot be read" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a parent's death is a signal on Linux")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_worker_goes_with_its_parent(how, driver, tmp_path):
    """One that hangs in a kernel would hold the card for ever."""
    kit = make_kit(tmp_path / "kit", {"E1": ["right us=7"]})
    words = [SCRIPT, kit, "--out", tmp_path / "out", "--driver", driver, "--no-torch"]
    command = [sys.executable, *map(str, words)]
    parent = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "MADE_UP_HANGS": "1"})
    until, workers = time.monotonic() + 60, []
    while time.monotonic() < until and not workers:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        workers = [int(n) for n in children if b"roller_bench.kit.worker" in Path(f"/proc/{n}/cmdline").read_bytes()]
        time.sleep(0.1)
    time.sleep(1.0)  # it ties itself to its parent first of all
    parent.send_signal(how)
    parent.wait(60)
    gone = [pid for pid in workers if not _running(pid)]
    until = time.monotonic() + 20
    while time.monotonic() < until and gone != workers:
        gone = [pid for pid in workers if not _running(pid)]
        time.sleep(0.1)
    assert workers and gone == workers


def _running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_the_copied_folder_runs_alone(driver, tmp_path):
    """Checked and timed without this checkout, numpy or site-packages: workers import nothing that was not copied."""
    kit = make_kit(tmp_path / "kit", {"E0": ["right"], "E1": ["wrong"]})
    copy_runner(kit, SCRIPT)
    command = [sys.executable, "-I", "-S", kit / "gpu_kit.py", "--out", tmp_path / "out", "--driver", driver, "--quick"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, cwd=tmp_path)
    operators = json.loads((tmp_path / "out" / "results.json").read_text())["operators"]
    verdicts = [operators[f"{name}.float32"]["plans"]["0"]["verdict"] for name in ("E0", "E1")]
    assert verdicts == ["right", "wrong"], done.stdout + done.stderr
    assert (tmp_path / "out" / "plot.svg").is_file()
