"""``roller-tvm tune``, ``compile`` and ``run`` on a small model, and what they say to mistakes."""

import json
import os
import signal
import subprocess
import sys

import pytest

from roller_tvm import cli
from roller_tvm.relay.records import read_records

from ..relay.onnx_models import convolution
from .command import main

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A model and its records."""
    folder = tmp_path_factory.mktemp("tuned")
    model = convolution(folder / "small.onnx")
    records = folder / "records.json"
    words = ["tune", str(model), "--output", str(records), "--trials", "2", "--picture", str(folder / "tuned.svg")]
    assert cli.main(words) == 0
    assert (folder / "tuned.svg").read_text().startswith("<svg")
    return model, records


@pytest.mark.nightly
def test_records_are_there_and_are_not_made_twice(tuned, capsys):
    model, path = tuned
    records = read_records(path)
    assert records and all(r.measured and r.note.checked for r in records)
    before = path.read_bytes()
    code, out, _ = main(capsys, "tune", model, "--output", path, "--trials", "2", "--json")
    data = json.loads(out)
    # Where TVM's own kernel won, that is remembered too.
    assert code == 0 and "resumed" in {t["status"] for t in data["tasks"]} <= {"resumed", "fallback"}
    assert path.read_bytes() == before


@pytest.mark.nightly
def test_tvmc_reads_the_package(tuned, tmp_path, capsys):
    from tvm.driver.tvmc.model import TVMCPackage

    main(capsys, "compile", tuned[0], "--tuning-records", tuned[1], "-o", tmp_path / "m.tar")
    package = TVMCPackage(str(tmp_path / "m.tar"))
    assert package.type == "classic" and json.loads(package.graph)["nodes"]


def test_half_a_record_is_mended(tuned, tmp_path, capsys):
    model, records = tuned
    torn = tmp_path / "torn.json"
    torn.write_bytes(records.read_bytes()[:-40])
    with pytest.warns(UserWarning, match="half there"):
        code, out, _ = main(capsys, "tune", model, "--output", torn, "--trials", "2", "--json")
    states = [t["status"] for t in json.loads(out)["tasks"]]
    kept = len(read_records(records))
    assert code == 0 and states.count("resumed") == kept - 1
    # The torn one is tuned again, unless TVM's own kernel wins this time.
    assert len(states) - states.count("resumed") - states.count("planned") == states.count("fallback")
    assert kept - 1 <= len(read_records(torn)) <= kept


def test_corrupt_records_are_refused_and_left_alone(tuned, tmp_path, capsys):
    model, records = tuned
    bad = tmp_path / "bad.json"
    bad.write_text("this is no record\n" + records.read_text())
    before = bad.read_bytes()
    code, _, err = main(capsys, "tune", model, "--output", bad)
    assert code == 2 and f"{bad}:1" in err and "remedy:" in err and bad.read_bytes() == before


@pytest.mark.slow
@pytest.mark.nightly
def test_ctrl_c_keeps_the_records_and_resumes(tuned, tmp_path, capsys):
    path = tmp_path / "r.json"
    words = ["tune", str(tuned[0]), "--output", str(path), "--trials", "2"]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    process = subprocess.Popen([sys.executable, "-u", "-m", "roller_tvm.cli", *words], env=environment,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    for line in process.stdout:
        if line.split()[:1] == ["0"]:  # the first task's row
            process.send_signal(signal.SIGINT)
            break
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "are intact" in err and "run the same command again" in err and "Traceback" not in err
    kept = read_records(path)
    assert kept
    code, out, _ = main(capsys, *words, "--json")
    assert code == 0 and [t["status"] for t in json.loads(out)["tasks"]].count("resumed") == len(kept)
