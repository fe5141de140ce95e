"""Real ranks of MPI: the same outputs, bytes that are counted, and faults that every rank tells."""

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from roller_tvm.children import environment
from roller_tvm.errors import RollerError
from roller_tvm.scale import mpi
from roller_tvm.scale.pieces import piece_model
from tests.sampling import sampled
from tests.scale import models
from tests.scale.kit import FREE, RACK, expected, forced, lowered

try:
    mpi.library()
    LACKING = "" if mpi.launcher() else ""
except RollerError as error:
    LACKING = error.one_line()
needs_mpi = pytest.mark.skipif(bool(LACKING), reason=LACKING)

ROOT = Path(__file__).parents[2]
#: Open MPI runs nothing for root otherwise, as which CI runs.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def launch(folder, source, made, inputs, *fault):
    """Run a program on ranks; return the process's result."""
    for node in range(made.program.nodes):
        for number in range(len(made.program.pieces)):
            (folder / f"{node}_{number}.onnx").write_bytes(piece_model(source, made, number, node).SerializeToString())
    (folder / "program.json").write_text(made.program.to_json())
    np.savez(folder / "inputs.npz", **inputs)
    command = mpi.command(made.program.nodes, "tests.scale.ranks", str(folder), *fault)
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment(AS_ROOT | paths))


def hold(folder, model, source, made, inputs):
    done = launch(folder, source, made, inputs)
    assert done.returncode == 0, done.stderr
    found, told = np.load(folder / "outputs.npz"), json.loads((folder / "told.json").read_text())
    for name, wanted in expected(model, inputs)[0].items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-5)
    assert told["bytes"] == made.program.bytes_sent
    return told


@needs_mpi
def test_a_block_of_a_transformer_on_two_ranks(tmp_path):
    model = models.block()
    source, made = lowered(model, 2, FREE)
    assert made.program.bytes_sent > 0
    hold(tmp_path, model, source, made, models.inputs_of(model))


@needs_mpi
def test_a_convolution_with_halos_on_four_ranks(tmp_path):
    model = models.convolutions(64, 16)
    source, made = forced(model, 4, {"a": "h", "b": "dim2", "c": "h", "y": "dim2"}, RACK)
    told = hold(tmp_path, model, source, made, models.inputs_of(model))
    finish = next(n for n, (i, _) in enumerate(told["events"]) if i == "finish r0")
    assert told["events"][finish - 1][0].startswith("compute") and told["events"][finish - 1][1] > 0


FAULTS = {
    "kill:1": "",  # mpirun ends the others, which cannot always speak, and says so itself
    "late:1": r"rank 0 of 3: .*nothing from rank 1.* for 2 s.*--time-limit",
    "raise:1": r"rank 1 of 3: ValueError: a kernel failed",
    "differ:2": r"rank \d of 3: build of the model: that of rank 2 is not that of rank 0",
    "device:2": r"rank \d of 3: device file of the plan: that of rank 2",
    "fail:0": r"rank \d of 3: rank 0: no such file; remedy: mend that rank",
}


@needs_mpi
@pytest.mark.parametrize("fault", sampled(FAULTS, always=("kill:1", "late:1", "differ:2")))
def test_a_fault_of_a_rank_is_told_by_all(tmp_path, fault):
    """Nothing hangs, nothing is half written, and each rank that can speak says why it ends."""
    model = models.block()
    source, made = lowered(model, 3, FREE)
    done = launch(tmp_path, source, made, models.inputs_of(model), fault)
    assert done.returncode != 0
    assert not (tmp_path / "outputs.npz").exists()
    lines = [line for line in done.stderr.splitlines() if "roller-tvm: error:" in line]
    if fault == "kill:1":
        assert lines or re.search(r"rank 1\b.*signal 9", done.stderr, re.S), done.stderr
        return
    assert any(re.search(FAULTS[fault], line) for line in lines), done.stderr
    ranks = {int(number) for line in lines for number in re.findall(r"rank (\d) of 3", line)}
    assert ranks >= {0, 1, 2}, done.stderr


def test_without_mpi_there_is_a_remedy(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mpi4py", None)
    with pytest.raises(mpi.NoMpi, match="need mpi4py.*") as caught:
        mpi.library()
    assert "roller-tvm[mpi]" in caught.value.remedy
