"""`compile --nodes`, `run --mpi` and the package between them."""

import json
import subprocess

import onnx
import pytest

from roller_tvm.children import environment
from roller_tvm.cli import main
from roller_tvm.device import Network, spec_text
from roller_tvm.errors import RollerError
from roller_tvm.scale import mpi
from roller_tvm.scale.building import planned
from roller_tvm.scale.package import BUILD, DEVICE, PROGRAM, Package, write
from roller_tvm.scale.proof import refutations
from tests.scale import models
from tests.scale.kit import CPU, FREE, RACK, device, lowered
from tests.scale.test_ranks import AS_ROOT, needs_mpi


@pytest.fixture
def files(tmp_path):
    """A product as a file, and a device file with a network of no cost."""
    onnx.save(models.product(), tmp_path / "product.onnx")
    (tmp_path / "nodes.toml").write_text(spec_text(device(FREE)))
    return tmp_path


@pytest.mark.te
@needs_mpi
@pytest.mark.nightly
def test_a_product_is_compiled_and_run_on_two_ranks(files, capsys):
    made = files / "product.nodes"
    words = ["compile", str(files / "product.onnx"), "--nodes", "2", "--device", str(files / "nodes.toml")]
    assert main([*words, "-o", str(made)]) == 0
    assert "<- this program" in capsys.readouterr().out
    run = ["run", str(made), "--mpi", "--json", "--expect", str(files / "product.onnx"), "-o", str(files / "y.npz")]
    done = subprocess.run(mpi.command(2, "roller_tvm.cli", *run), capture_output=True, text=True, timeout=100,
                          env=environment(AS_ROOT))  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["bytes_sent"] == Package.open(made).program.bytes_sent > 0
    assert told["agrees"] and (files / "y.npz").is_file()
    assert main(["run", str(made)]) == 2 and "give --mpi too" in capsys.readouterr().err


@pytest.mark.parametrize(("more", "told"), [
    (["--nodes", "0"], "must be a number from 1"),
    (["--nodes", "2", "-o", "product.so"], "does not end in .nodes"),
    (["--nodes", "2", "--prove"], "does not go with --nodes"),
    (["--nodes", "2", "--device", "a100"], "states no network"),
    (["--nodes", "2", "--states", "x"], "is not NAME=VALUE"),
    (["--nodes", "2", "--along", "y0=q"], "its axes are none, m, n, k"),
    (["--nodes", "2", "--along", "z=m"], "has no operator 'z'"),
    (["--states", "x=y"], "give --nodes too"),
])  # fmt: skip
@pytest.mark.te
@pytest.mark.one_line("relax")
def test_mistakes_are_told_in_one_line(files, capsys, more, told):
    given = more if "--device" in more or "--nodes" not in more else [*more, "--device", str(files / "nodes.toml")]
    assert main(["compile", str(files / "product.onnx"), *given]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert told in error and "remedy:" in error


@pytest.mark.parametrize(("words", "told"), [
    (["--steps", "2"], "--steps goes with --mpi"), (["--mpi", "--emulate"], "--emulate does not go with --mpi"),
    (["--mpi", "--time-limit", "0"], "must be above 0"), (["--mpi"], "no such file"),
])  # fmt: skip
def test_mistakes_of_a_run_are_told_in_one_line(tmp_path, capsys, words, told):
    assert main(["run", str(tmp_path / "model.nodes"), *words]) == 2
    assert told in capsys.readouterr().err


def test_a_person_chooses_the_axis():
    source, made = planned(models.product(), "product", device(RACK), 4, along={"y0": "k", "y": "none"})
    assert dict(made.program.ways) == {"y0": "k", "y": ""}
    assert not list(refutations(made.program)) and source.graph.ops[0].ways[0].sums


def test_a_package_goes_through_its_file(tmp_path):
    program = lowered(models.block(), 2, RACK)[1].program
    library = tmp_path / "library"
    library.write_bytes(b"code")
    pieces = [(node, n, library) for node in range(2) for n in range(len(program.pieces))]
    path = tmp_path / "model.nodes"
    write(path, program, spec_text(CPU), "relax", pieces)
    read = Package.open(path)
    assert (read.program, read.device, read.line) == (program, spec_text(CPU), "relax")
    assert [p.read_bytes() for p in read.take(1, tmp_path)] == [b"code"] * len(program.pieces)
    whole = path.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(RollerError, match="is no model for several nodes"):
            Package.open(path)
    assert {PROGRAM, DEVICE, BUILD} == {"program.json", "device.toml", "build.json"}


def test_the_number_of_nodes_with_the_least_time_is_chosen_and_others_are_predicted():
    model = models.product(512, 512, 512)
    chosen = {}
    for name, network in (("free", FREE), ("slow", Network(64, 0.001, 1e5))):
        program = planned(model, "product", device(network))[1].program
        chosen[name] = program.nodes
        table = {p.nodes: p.seconds for p in program.predicted}
        assert set(table) == {1, 2, 4, 8, 16, 32, 64} and table[program.nodes] == min(table.values())
        assert "predicted by the model from the device file, not measured" in str(program)
    assert chosen["slow"] == 1 < chosen["free"]
