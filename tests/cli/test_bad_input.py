"""Bad input of every kind: one line that names the thing and the remedy, exit code 1 or 2, no traceback.

From Python the same mistakes are typed errors.
"""

import errno
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import roller_tvm
from roller_tvm import cli
from roller_tvm.errors import (
    BadInput,
    DiskFull,
    RecordError,
    SpecError,
    TargetError,
    ToolchainError,
    UnknownDevice,
    UnsupportedOperator,
    UsageError,
)
from roller_tvm.tvm_env import line

from .. import forks
from . import bad_input_page

pytestmark = pytest.mark.te
onnx = pytest.importorskip("onnx")
X = np.ones((4, 24), "float32")
LINE = line()
RECORDS = {"relay": "records.json", "relax": "records"}.get(LINE, "")
NO_RECORDS = {"relay": "text.json", "relax": "folder"}.get(LINE, "")
OTHER_KIND = {"relay": "folder", "relax": "text.json"}.get(LINE, "")  # a folder for a file, a file for a folder

# What is wrong, the command, what its message names.
MODELS = [
    ("no such file", "compile missing.onnx", "missing.onnx: no such file"),
    ("a folder", "compile folder", "folder: is a folder"),
    ("an empty file", "compile empty.onnx", "empty.onnx: is not an ONNX model"),
    ("text called .onnx", "compile text.onnx", "text.onnx: is not an ONNX model"),
    ("half an ONNX file", "compile half.onnx", "half.onnx: is not an ONNX model"),
    ("half an ONNX file, tuned", "tune half.onnx -o r", "half.onnx: is not an ONNX model"),
    ("an operator TVM lacks", "compile unsupported.onnx", "unsupported.onnx: unsupported operators: Frobnicate"),
    ("an operator TVM lacks, tuned", "tune unsupported.onnx -o r", "Frobnicate (1x, first at 'frob')"),
    ("weights that are not there", "compile external.onnx", "external.onnx"),
    ("shapes that do not fit together", "compile misfit.onnx", "misfit.onnx"),
    ("text called .json", "compile text.json", "text.json: is not a Rel"),
    ("text called .pt2", "compile text.pt2", "text.pt2: is not an ExportedProgram"),
    ("pickled Python", "compile text.pth", "text.pth: is pickled Python"),
    ("weights for a file that has its own", "compile good.onnx --params text.json", "--params"),
    ("weights that are not there, --params", "compile good.onnx --params none.params", "none.params: no such file"),
    ("a missing model, compared", "compare missing.onnx --output out", "missing.onnx: no tasks extracted: no such"),
]
SHAPES = [
    ("no list of shapes", "compile good.onnx --input-shapes x", "--input-shapes: 'x' is not a list of shapes"),
    ("an open bracket", "compile good.onnx --input-shapes x:[4,24", "'x:[4,24' is not a list of shapes"),
    ("an extent of 0", "compile good.onnx --input-shapes x:[0,24]", "'x:[0,24]' is not a list of shapes"),
    ("another rank", "compile good.onnx --input-shapes x:[4,24,1]", "input 'x' has 2 dimensions, [4, 24, 1] has 3"),
    ("a name of no input", "compile good.onnx --input-shapes q:[4]", "good.onnx: no input is called 'q'"),
    ("a shape its weights do not fit", "compile good.onnx --input-shapes x:[4,25]", "good.onnx"),
    ("an unknown layout", "compile good.onnx --desired-layout CHW", "invalid choice: 'CHW'"),
]
TARGETS = [
    ("no kind of target", "compile good.onnx --target gpu", "'gpu'"),
    ("an empty target", "compile good.onnx --target ''", "names no kind"),
    ("half a JSON target", "compile good.onnx --target '{kind'", "target is not JSON"),
    ("an unknown CPU", "compile good.onnx --target 'llvm -mcpu=none-such'", "LLVM does not know"),
    ("an unknown option", "compile good.onnx --target 'llvm -bogus=1'", "bogus"),
    ("cuda without its architecture", "compile good.onnx --target cuda", "-arch=sm_90"),
    ("cuda without its architecture, tuned", "tune good.onnx -o r --target cuda", "-arch=sm_90"),
    ("no architecture", "compile good.onnx --target 'cuda -arch=h100'", "'h100' is not an NVIDIA architecture"),
    ("a target without quotes", "compile good.onnx --target llvm -mcpu=skylake", '--target "llvm -mcpu=..."'),
    ("no such device", "compile good.onnx --device h2000", "did you mean 'h200'?"),
    ("no such device, tuned", "tune good.onnx -o r --device h2000", "did you mean 'h200'?"),
    ("no such device file", "compile good.onnx --device none.toml", "no spec file 'none.toml'"),
    ("a device file that is no TOML", "compile good.onnx --device text.toml", "text.toml: not TOML"),
    ("a device file with a wrong unit", "compile good.onnx --device unit.toml", "level.shared.capacity: unit 'GB/s'"),
    ("a GPU for a CPU's code", "compile good.onnx --device h200", "'h200' is a gpu (sm_90)"),
    ("a device for planning alone", "tune good.onnx -o r --device ipu_mk1", "is for planning only"),
]
OUTPUTS = [
    ("no such folder", "compile good.onnx -o none/m.so", "none: no such folder"),
    ("another ending", "compile good.onnx -o m.zip", "'m.zip'"),
    ("a folder in its place", "compile good.onnx -o folder.so", "folder.so: is a folder"),
    ("no such folder for outputs", "run m.so -o none/out.npz", "none: no such folder"),
    ("a folder for outputs", "run m.so -o folder", "folder: is a folder"),
    ("no such folder for a device", "profile --out none/d.toml", "none: no such folder"),
]
RECORD_FILES = [
    ("no such records", "compile good.onnx --tuning-records none", "none: no such"),
    ("no records in it", f"compile good.onnx --tuning-records {NO_RECORDS}", NO_RECORDS),
    ("a folder for a file, or the reverse", f"compile good.onnx --tuning-records {OTHER_KIND}", OTHER_KIND),
    ("a folder for a file, or the reverse, tuned", f"tune good.onnx -o {OTHER_KIND}", OTHER_KIND),
    ("records of another target", f"compile good.onnx --tuning-records {RECORDS} --target 'cuda -arch=sm_80'",
     f"{RECORDS}: its records are for "),
    ("no records to continue", "tune good.onnx -o text.json", "text.json"),
    ("no place for records", "tune good.onnx", "--output is missing"),
    ("no such folder for records", "tune good.onnx -o none/r", "none: no such folder"),
    ("a device for records", "tune good.onnx -o /dev/full", "/dev/full"),
    ("no such records, replayed", "replay none.json --device v100", "none.json: no such file or folder"),
    ("no records, replayed", "replay text.json --device v100", "text.json: no record could be read back"),
]  # fmt: skip
RUNS = [
    ("no such model", "run none.so", "none.so: no such file"),
    ("a folder", "run folder.so", "folder.so: is a folder"),
    ("a model before it is built", "run good.onnx", f"good.onnx: is not a model of the {LINE.title()} line"),
    ("text called .so", "run text.so", f"text.so: is not a model of the {LINE.title()} line"),
    ("text called .tar", "run text.tar", f"text.tar: is not a model of the {LINE.title()} line"),
    ("half a library", "run half.so", "half.so: is half of a library"),
    ("a library that is no model", "run library.so", f"library.so: is not a model of the {LINE.title()} line"),
    ("no such device", "run m.so --device cuda", "m.so: needs a cuda device"),
    ("a model without GPU kernels, emulated", "run m.so --emulate", "m.so: holds no source of kernels"),
    ("no such inputs", "run m.so -i none.npz", "none.npz: no such file"),
    ("a folder of inputs", "run m.so -i folder", "folder: is a folder"),
    ("text called .npz", "run m.so -i text.npz", "text.npz: is not an .npz file"),
    ("a single array", "run m.so -i one.npy", "one.npy: is not an .npz file: it holds a single array"),
    ("an unknown input", "run m.so -i name.npz", "name.npz: the model has no input 'q'"),
    ("an input of another shape", "run m.so -i shape.npz", "shape.npz: 'x' is [3, 24], the model takes [4, 24]"),
    ("an input of another type", "run m.so -i strings.npz", "strings.npz: 'x' is an array of <U1"),
    ("no such outputs to compare with", "run m.so --expect none.npz", "none.npz: no such file"),
    ("text to compare with", "run m.so --expect text.onnx", "text.onnx: is not an ONNX model"),
]
WORDS = [
    ("no command", "", "COMMAND"),
    ("no such command", "frobnicate", "invalid choice: 'frobnicate'"),
    ("no model", "compile", "FILE"),
    ("no such option", "run m.so --hope", "--hope"),
    ("no repeats", "run m.so --repeat 0", "--repeat must be 1 or more (got 0)"),
    ("words for a number", "run m.so --repeat many", "argument --repeat: invalid int value: 'many'"),
    ("trials below 0", "tune good.onnx -o r --trials -1", "--trials must be 0 or more (got -1)"),
    ("no time", "tune good.onnx -o r --timeout 0", "--timeout must be above 0 (got 0)"),
    ("no such task", "tune good.onnx -o r --tasks 99", "no task 99"),
    ("a missing parameter", "plan matmul m=4 n=4", "parameter 'k' is missing"),
    ("an extent of 0", "plan matmul m=4 n=4 k=0", "'k' must be an int >= 1 (got 0)"),
    ("no such operator", "plan conv3d n=1", "unknown operator 'conv3d'"),
    ("no such file of operators", "plan --operators none.csv", "none.csv: cannot be read: No such file"),
    ("no file of operators", "plan --operators text.npz", "text.npz: has no column id, operator, params"),
    ("no such suite", "compare --suite none", "none: no such suite"),
]
CASES = [*MODELS, *SHAPES, *TARGETS, *OUTPUTS, *RUNS, *WORDS]
if LINE == "relay":
    OWN = [
        ("an open extent", "compile open.onnx", "'x' [n, 24]"),
        ("an architecture TVM 0.17 lacks", "compile good.onnx --target 'cuda -arch=sm_120'", "sm_120"),
        ("half a package", "run half.tar", "half.tar: is not a model of the Relay line"),
        ("sizes of open extents", "compile good.onnx --buckets 1,8", "--buckets"),
        ("the other line", "compile good.onnx --line relax", "compiling a model needs TVM 0.25 or later (got 0."),
    ]
else:
    OWN = [
        ("no sizes", "compile good.onnx --buckets 1,two", "'1,two' is not a list of sizes"),
        ("sizes of no extent", "compile good.onnx --buckets 1,8", "remedy"),
        ("records of another CPU", f"tune good.onnx -o {RECORDS} --target 'llvm -mcpu=x86-64'", f"{RECORDS}: its rec"),
        ("the other line", "compile good.onnx --line relay", "compiling a model needs TVM 0.13 to 0.19 (got 0."),
    ]
FAILS = {"compile good.onnx --line relax", "compile good.onnx --line relay"}  # exit code 1: nothing given is wrong


def model(path, nodes, shape=(4, 24), **how):
    """Write an ONNX model of an input x, a weight W and an output y."""
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.random.default_rng(0).random((24, 48), "float32"), "W")
    tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", shape), ("y", None))]
    graph = helper.make_graph([helper.make_node(*n, name=n[0].lower()[:4]) for n in nodes], "net", tensors[:1],
                              tensors[1:], [weight])  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, str(path), **how)


def fill(place):
    """Write the files of the tables into a folder, which has to be the current one."""
    good = [("MatMul", ["x", "W"], ["p"]), ("Relu", ["p"], ["y"])]
    model("good.onnx", good)
    model("open.onnx", good, ("n", 24))
    model("misfit.onnx", good, (4, 25))
    model("unsupported.onnx", [("Frobnicate", ["x"], ["y"])])
    model("external.onnx", good, save_as_external_data=True, location="external.bin", size_threshold=0)
    Path("external.bin").unlink()
    Path("half.onnx").write_bytes(Path("good.onnx").read_bytes()[:2000])
    Path("empty.onnx").touch()
    for ending in ("onnx", "json", "pt2", "pth", "npz", "so", "tar", "toml"):
        Path(f"text.{ending}").write_text("this is not what its name says\n")
    Path("unit.toml").write_text('base = "v100"\n[level.shared]\ncapacity = { value = 96, unit = "GB/s" }\n')
    np.savez("shape.npz", x=X[:3])
    np.savez("name.npz", q=X)
    np.savez("strings.npz", x=np.full(X.shape, "a"))
    np.save("one.npy", X)
    for folder in ("folder", "folder.so"):
        Path(folder).mkdir()
    for words in ("compile good.onnx -o m.so", f"tune good.onnx -o {RECORDS} --trials 0",
                  *(["compile good.onnx -o m.tar"] if LINE == "relay" else [])):  # fmt: skip
        assert cli.main(words.split()) == 0
    for built in Path().glob("m.*"):
        Path(f"half{built.suffix}").write_bytes(built.read_bytes()[:9000])
    library = next(p for p in Path(np.__file__).parent.rglob("_multiarray_umath*.so"))
    Path("library.so").write_bytes(library.read_bytes())
    return place


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder, before = tmp_path_factory.mktemp("bad"), Path.cwd()
    os.chdir(folder)
    try:
        yield fill(folder)
    finally:
        os.chdir(before)


@pytest.fixture
def here(place, monkeypatch):
    monkeypatch.chdir(place)


def one_line(err, named):
    """Check what the command wrote to the standard error; return its last line."""
    told = err.splitlines()[-1]
    assert "Traceback" not in err and err.count("error: ") == 1
    assert not re.search(r"\.cc:\d+: Error: ", err)  # a line of TVM's about what LLVM refuses
    assert "remaining blocks" not in err  # TVM's warning of an importer that failed
    assert told.startswith("roller-tvm: error: ") and "; remedy: " in told and named in told
    return told


@pytest.mark.one_line
@pytest.mark.parametrize(("what", "words", "named"), [
    *(pytest.param(*case, id=case[1]) for case in CASES),
    *(pytest.param(*case, id=case[1], marks=pytest.mark.one_line(LINE)) for case in [*RECORD_FILES, *OWN]),
])  # fmt: skip
def test_command(here, capfd, what, words, named):
    code = cli.main(shlex.split(words))
    told = one_line(capfd.readouterr().err, named)
    assert code == (1 if words in FAILS else 2), what
    assert not (stale := bad_input_page.fault(what, words, code, told)), stale


PYTHON = [
    (lambda: roller_tvm.compile("missing.onnx"), BadInput, "missing.onnx: no such file"),
    (lambda: roller_tvm.compile("folder"), BadInput, "folder: is a folder"),
    (lambda: roller_tvm.compile("empty.onnx"), BadInput, "empty.onnx: is not an ONNX model"),
    (lambda: roller_tvm.compile("half.onnx"), BadInput, "half.onnx: is not an ONNX model"),
    (lambda: roller_tvm.compile("unsupported.onnx"), UnsupportedOperator, "Frobnicate"),
    (lambda: roller_tvm.compile("external.onnx"), BadInput, "external.onnx"),
    (lambda: roller_tvm.compile("good.onnx", shapes="x"), UsageError, "is not a list of shapes"),
    (lambda: roller_tvm.compile("good.onnx", shapes={"x": (4, 24, 1)}), BadInput, "has 2 dimensions"),
    (lambda: roller_tvm.compile("good.onnx", "gpu"), TargetError, "gpu"),
    (lambda: roller_tvm.compile("good.onnx", "cuda"), TargetError, "sm_90"),
    (lambda: roller_tvm.compile("good.onnx", {"kind": "llvm", "mcpu": "none"}), TargetError, "LLVM does not know"),
    (lambda: roller_tvm.compile("good.onnx", "cuda -arch=sm_80"), BadInput, "needs a cuda device"),
    (lambda: roller_tvm.compile("good.onnx", device="h2000"), UnknownDevice, "did you mean 'h200'"),
    (lambda: roller_tvm.compile("good.onnx", device=3), UnknownDevice, "'device' must be a name"),
    (lambda: roller_tvm.compile("good.onnx", device="unit.toml"), SpecError, "level.shared.capacity"),
    (lambda: roller_tvm.compile("good.onnx", device="h200"), TargetError, "is a gpu"),
    (lambda: roller_tvm.compile("good.onnx", records="none"), BadInput, "none: "),
    (lambda: roller_tvm.compile("good.onnx", records="text.json"), RecordError, "text.json"),
    (lambda: roller_tvm.compile("good.onnx", records=3), UsageError, "'records' must be a path"),
    (lambda: roller_tvm.compile("good.onnx", threads="many"), UsageError, "'threads' must be"),
    (lambda: roller_tvm.load("none.so"), BadInput, "none.so: no such file"),
    (lambda: roller_tvm.load("folder.so"), BadInput, "folder.so: is a folder"),
    (lambda: roller_tvm.load("text.so"), BadInput, "text.so: is not a model"),
    (lambda: roller_tvm.load("half.so"), BadInput, "half.so: is half of a library"),
    (lambda: roller_tvm.load("library.so"), BadInput, "library.so: is not a model"),
    (lambda: roller_tvm.load(3), UsageError, "'path' must be a path"),
    (lambda: roller_tvm.load("m.so", "cuda"), BadInput, "m.so: needs a cuda device"),
    (lambda: roller_tvm.load("m.so", "hope"), BadInput, "m.so: TVM knows no device 'hope'"),
    (lambda: roller_tvm.load("m.so").times({"x": X}, 0), UsageError, "'number' must be an int >= 1"),
    (lambda: roller_tvm.load("m.so").run({"q": X}), BadInput, "m.so: has no input 'q'"),
    (lambda: roller_tvm.load("m.so")(X[:3]), BadInput, "'x' is [3, 24], the model takes [4, 24]"),
    (lambda: roller_tvm.load("m.so")(np.full(X.shape, "a")), BadInput, "the model takes float32"),
    (lambda: roller_tvm.load("m.so").save("folder.so"), BadInput, "folder.so: cannot be written: Is a directory"),
    (lambda: roller_tvm.load("m.so").save("none/m.so"), BadInput, "none: no such folder"),
]


@pytest.mark.one_line
@pytest.mark.parametrize(("call", "error", "told"), PYTHON)
def test_from_python(here, call, error, told):
    with pytest.raises(error) as caught:
        call()
    assert told in str(caught.value) and caught.value.remedy


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)


def test_no_compiler(here, no_compiler, capsys, monkeypatch):
    """Only a library on disk needs one; that is said before the model is imported."""
    assert cli.main(["compile", "missing.onnx", "-o", "n.so"]) == 1
    told = one_line(capsys.readouterr().err, "n.so: the library cannot be linked: there is no C++ compiler")
    assert "install g++" in told
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert cli.main(["compile", "good.onnx", "-o", "n.so"]) == 1
    one_line(capsys.readouterr().err, "CXX=no-such-compiler is no program; remedy: unset CXX")
    built = roller_tvm.compile("good.onnx")
    assert built(X).shape == (4, 48)
    with pytest.raises(ToolchainError, match="CXX=no-such-compiler"):
        built.save("n.so")


def test_no_onnx(here, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert cli.main(["compile", "good.onnx", "-o", "n.so"]) == 2
    assert "install" in one_line(capsys.readouterr().err, "good.onnx: reading ONNX needs the 'onnx' package")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("words", ["compile good.onnx -o locked/n.so", "run m.so -o locked/out.npz"])
def test_folder_that_is_locked(here, capsys, words):
    Path("locked").mkdir(mode=0o500, exist_ok=True)
    assert cli.main(words.split()) == 2
    one_line(capsys.readouterr().err, "locked")


@pytest.mark.parametrize("ending", ["so", "tar"] if LINE == "relay" else ["so"])
def test_no_space_for_a_model(here, tmp_path, capsys, monkeypatch, ending):
    import importlib

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    package = importlib.import_module(f"roller_tvm.{LINE}.package")
    built = roller_tvm.compile("good.onnx")
    monkeypatch.setattr(package.os, "replace", full)
    assert cli.main(["compile", "good.onnx", "-o", str(tmp_path / f"n.{ending}")]) == 1
    one_line(capsys.readouterr().err, f"n.{ending}: no space left to write the model; nothing was written")
    with pytest.raises(DiskFull):
        built.save(tmp_path / f"n.{ending}")
    assert not list(tmp_path.iterdir())


def test_no_space_for_outputs(here, capsys):
    assert cli.main(["run", "m.so", "-o", "/dev/full"]) == 1
    one_line(capsys.readouterr().err, "/dev/full: no space left to write it")


SMALL_DISK = """
import resource, sys
sys.dont_write_bytecode = True
from roller_tvm.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.one_line("relay")
def test_no_space_for_records(here):
    """A limit on the size of files stands in for a full disk: writers in C++ meet it too."""
    full = Path("r.full")
    if LINE == "relay":  # whose records are shorter than the weights that workers are given
        full.write_text(f"#{' ' * (16 * 1024 - 2)}\n")
    target = "llvm -num-cores=2"  # this process knows of two cores, the other asks the machine
    words = ["tune", "good.onnx", "-o", "r.full", "--trials", "0", "--target", target]
    plain = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # Python keeps bytecode of which the end did not fit
    done = forks.run(["-c", SMALL_DISK, *words], env=plain)
    assert done.returncode == 1 and "resumes" in one_line(done.stderr, "r.full: no space left")
    assert cli.main(words) == 0, "and so it does"


@pytest.mark.one_line("relax")
@pytest.mark.parametrize("words", ["compile good.onnx", "tune good.onnx -o r", "run m.so", "compare good.onnx"])
def test_no_tvm(here, words):
    block = "import sys; sys.modules['tvm'] = None; from roller_tvm.cli import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", block, *shlex.split(words)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'roller-tvm[relax]'" in one_line(done.stderr, "needs TVM, and none can be imported")
