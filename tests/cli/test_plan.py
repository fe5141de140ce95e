"""``roller-tvm plan``: what it prints, its JSON, its exit codes, and that it needs no TVM."""

import json
import subprocess
import sys

import pytest

from roller_tvm import cli
from roller_tvm.device import load_device
from roller_tvm.ir.operators import operator
from roller_tvm.planner import construct
from roller_tvm.planner.construction import RankedPlan
from roller_tvm.roller.features import Features

CONV = ["conv2d_nchw", "n=1", "c=64", "h=56", "w=56", "f=64", "kh=3", "kw=3", "stride=1", "padding=1"]


def plan(capsys, *words):
    code = cli.main(["plan", *words])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_table_has_the_best_first(capsys):
    code, out, _ = plan(capsys, *CONV, "--device", "h200", "--top", "5")
    assert code == 0
    rows = [line.split() for line in out.splitlines() if line.lstrip().startswith("#")]
    times = [float(r[1]) for r in rows[:5]]
    assert [r[0] for r in rows[:5]] == ["#1", "#2", "#3", "#4", "#5"] and times == sorted(times)
    assert "is slower:" in out


def test_json_is_ranked_plans(capsys):
    code, out, _ = plan(capsys, *CONV, "--device", "v100", "--top", "3", "--json")
    data = json.loads(out)
    assert code == 0 and data["device"] == "v100" and len(data["plans"]) == 3
    for written in data["plans"]:
        ranked = RankedPlan.from_json(written)
        assert json.loads(json.dumps(ranked.to_json())) == written
        assert RankedPlan.from_json(ranked.to_json()) == ranked


def test_explain_and_steps(capsys):
    code, out, _ = plan(capsys, *CONV, "--device", "h200", "--explain", "--steps")
    assert code == 0
    for part in ("roofline", "Load ", "rule 3", "why the runners-up lost", "remedy:", "cache_read("):
        assert part in out


def test_needs_no_tvm():
    block = "import sys; sys.modules['tvm'] = None; from roller_tvm.cli import main; sys.exit(main())"
    words = ["plan", "matmul", "m=64", "n=64", "k=64", "--device", "v100", "--explain", "--steps"]
    done = subprocess.run([sys.executable, "-c", block, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "roofline" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "give one operator"),
        (["conv3d", "n=1"], 2, "did you mean conv2d"),
        (["conv2d_nchw"], 2, "roller-tvm plan conv2d_nchw n=..."),
        (["matmul", "m=4", "n=4", "k=0"], 2, "'k' must be an int >= 1 (got 0)"),
        (["matmul", "m=4", "n=4", "q=4"], 2, "unknown parameter 'q'"),
        ([*CONV, "--device", "h201"], 2, "did you mean 'h200'"),
        ([*CONV, "--device", "no.toml"], 2, "no spec file"),
        ([*CONV, "--target", "cuda"], 2, "-arch=sm_90"),
        ([*CONV, "--top", "0"], 2, "--top must be 1"),
        (["--operators", "no_such.csv"], 2, "no_such.csv"),
    ],
)
def test_mistakes(capsys, words, code, said):
    got, _, err = plan(capsys, *words)
    assert got == code and said in err and "remedy:" in err and "Traceback" not in err


def test_spec_file_with_a_wrong_unit(capsys, tmp_path):
    spec = tmp_path / "mine.toml"
    spec.write_text('base = "v100"\n[level.shared]\ncapacity = { value = 96, unit = "GB/s" }\n')
    code, _, err = plan(capsys, *CONV, "--device", str(spec))
    assert code == 2 and "capacity" in err and "GB/s" in err and str(spec) in err


def test_csv(capsys, tmp_path):
    file = tmp_path / "two.csv"
    file.write_text("id,operator,params\nA,matmul,m=64 n=64 k=64\nB,nonsense,m=1\nC,relu,shape=64x64\n")
    code, out, _ = plan(capsys, "--operators", str(file), "--device", "v100", "--top", "2")
    assert code == 1  # B got no plan
    assert "B         no plan: unknown operator 'nonsense'" in out and "2 of 3 operators planned" in out
    code, out, _ = plan(capsys, "--operators", str(file), "--device", "v100", "--top", "2", "--json")
    data = json.loads(out)
    assert [d["id"] for d in data] == ["A", "B", "C"] and "error" in data[1]
    assert RankedPlan.from_json(data[2]["plans"][0]).plan.device == "v100"


def test_csv_without_the_columns(capsys, tmp_path):
    file = tmp_path / "bad.csv"
    file.write_text("name,what\na,b\n")
    code, _, err = plan(capsys, "--operators", str(file), "--device", "v100")
    assert code == 2 and "has no column id, operator, params" in err


@pytest.mark.parametrize(("line", "on"), [("relax", "a100"), ("relay", "a100"), ("relax", "v100")])
def test_a_line_plans_with_the_words_that_it_has(capsys, line, on):
    device, params = load_device(on), {"m": 512, "n": 512, "k": 512, "dtype": "float16"}
    words = [f"{k}={v}" for k, v in params.items()]
    code, out, _ = plan(capsys, "matmul", *words, "--device", on, "--line", line, "--top", "1", "--json")
    features = Features.of_tensor_ir(device) if line == "relax" else Features()
    best = construct(operator("matmul", **params), device, 1, features).best
    assert code == 0 and json.loads(out)["plans"][0]["plan"] == best.plan.to_json()


@pytest.mark.parametrize(
    "device", [pytest.param("a100", marks=pytest.mark.tvm), pytest.param("h100", marks=pytest.mark.relax)]
)
def test_a_checked_plan_is_executed(capsys, device):
    pytest.importorskip("tvm")
    code, out, _ = plan(capsys, "matmul", "m=64", "n=48", "k=40", "bias=true", "--device", device, "--check")
    assert code == 0 and "#1 executed on the CPU: 1 kernel, all blocks, all elements agree" in out


@pytest.mark.te
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_what_compiled_kernels_take(capsys, arch):
    from roller_tvm.codegen import find_compilers

    pytest.importorskip("tvm")
    if not any(c.supports(arch) for c in find_compilers()):
        pytest.skip("neither NVRTC nor nvcc here")
    words = ["matmul", "m=128", "n=128", "k=64", "--target", f"cuda -arch={arch}", "--top", "1", "--compile"]
    code, out, _ = plan(capsys, *words)
    assert code == 0 and f"#1 compiled for {arch}: predicted | by the compiler" in out
    code, out, _ = plan(capsys, *words, "--json")
    data = json.loads(out)
    (kernel,), (predicted,) = data["compiled"]["kernels"], data["plans"][0]["estimate"]["programs"]
    assert kernel["registers"][0] == predicted["registers"] and 0 < kernel["registers"][1] <= 255
    assert kernel["shared_bytes"][0] == predicted["shared_bytes"] <= kernel["shared_bytes"][1]
    # The model counts no more blocks than there are; these are what a unit has room for.
    assert kernel["occupancy"][0] >= predicted["occupancy"] and kernel["local_bytes"] == 0


@pytest.mark.relax
def test_what_is_compiled_is_the_first_of_the_plans_shown(capsys):
    """Of one plan that is asked for, the best is another than of ten: it was compiled in the place of the one shown."""
    from roller_tvm.codegen import find_compilers

    if not any(c.supports("sm_90") for c in find_compilers()):
        pytest.skip("neither NVRTC nor nvcc here")
    words = ["n=1", "c=64", "h=56", "w=56", "f=64", "kh=3", "kw=3", "padding=1", "--device", "h200"]
    code, out, _ = plan(capsys, "conv2d_nchw", *words, "--compile", "--json")
    data = json.loads(out)
    predicted = [(p["registers"], p["shared_bytes"]) for p in data["plans"][0]["estimate"]["programs"]]
    told = [(k["registers"][0], k["shared_bytes"][0]) for k in data["compiled"]["kernels"]]
    assert code == 0 and told == predicted


def test_only_kernels_for_nvidia_gpus_are_compiled(capsys):
    code, _, err = plan(capsys, "matmul", "m=8", "n=8", "k=8", "--compile", "--device", "mi50")
    assert code == 2 and "--compile compiles one operator's kernels for an NVIDIA GPU" in err


@pytest.mark.te
def test_a_second_witness(pocl, capsys):
    code, out, _ = plan(capsys, "relu", "shape=3x7x5", "--device", "a100", "--check", "--on-pocl")
    assert code == 0 and "#1 executed on the CPU: 1" in out and "#1 executed in OpenCL by PoCL: 1 kernel, all" in out
    code, _, err = plan(capsys, "relu", "shape=3x7x5", "--device", "a100", "--on-pocl")
    assert code == 2 and "--check" in err


@pytest.mark.relax
def test_tensor_cores_have_one_witness(capsys):
    words = ["m=64", "n=64", "k=64", "dtype=float16", "--device", "a100", "--top", "1", "--check", "--on-pocl"]
    code, out, err = plan(capsys, "matmul", *words)
    assert code == 2 and "#1 executed on the CPU: 1 kernel" in out and "OpenCL has no tensor cores" in err


@pytest.mark.parametrize("words", [["--device", "cpu"], ["--device", "mi50"]])
def test_only_kernels_for_nvidia_gpus_are_executed(capsys, words):
    code, _, err = plan(capsys, "matmul", "m=8", "n=8", "k=8", "--check", *words)
    assert code == 2 and "NVIDIA" in err
