"""The kit made here: operators planned, compiled and read back, and their kernels executed on this CPU."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("tvm")
pytest.importorskip("tvm.tirx", reason="needs the Relax line")
pytestmark = pytest.mark.relax

from roller_bench.kit import options  # noqa: E402
from roller_bench.kit.archive import archive_path, read_member, read_operator, write_archive  # noqa: E402
from roller_bench.kit.build import build_case, build_support, copy_runner  # noqa: E402
from roller_bench.kit.cases import Case  # noqa: E402
from roller_bench.kit.measure import Bench, measure_operator  # noqa: E402
from roller_bench.kit.options import Options  # noqa: E402
from roller_bench.kit.support import ARCHIVE  # noqa: E402
from roller_bench.kit.verify import image_arch, verify  # noqa: E402
from roller_tvm.codegen import find_compilers  # noqa: E402
from roller_tvm.device.cpu_bench import find_compiler  # noqa: E402
from roller_tvm.planner import Plan  # noqa: E402

from .emulated_card import EmulatedCard  # noqa: E402

SCRIPT = Path(__file__).resolve().parents[2] / "python" / "roller_bench" / "kit" / "gpu_kit.py"
OPTIONS = Options(top=2, sources="all")
CASES = [
    Case("C0", "conv2d_nchw", "n=1 c=6 h=7 w=7 f=8 kh=3 kw=3 padding=SAME", "float32"),
    Case("C1", "conv2d_nchw", "n=2 c=16 h=8 w=8 f=32 kh=1 kw=1 padding=VALID", "float16"),
    Case("D0", "depthwise_conv2d_nchw", "n=1 c=4 h=9 w=9 k=3 stride=2 padding=SAME", "float32"),
    Case("M0", "matmul", "m=24 n=40 k=300", "float32"),
    Case("M1", "matmul", "m=32 n=64 k=48", "bfloat16"),
    Case("P0", "avg_pool2d_nchw", "n=1 c=3 h=9 w=9 k=3 stride=2 padding=SAME", "float32"),
    Case("R0", "reduce_sum", "shape=12x300", "float32"),
    Case("E0", "relu", "shape=4x35", "float32"),
]


@pytest.fixture(scope="module")
def cases(request):
    """Half of them at every change, all in make nightly."""
    return CASES if request.config.getoption("--nightly") else [CASES[n] for n in (0, 1, 3, -1)]


@pytest.fixture(scope="module")
def kit(tmp_path_factory, cases):
    if not find_compilers():
        pytest.skip("neither NVRTC nor nvcc here")
    folder = tmp_path_factory.mktemp("kit")
    build_support(folder, "sm_90", OPTIONS)
    for case in cases:
        build_case(folder, case, "sm_90", OPTIONS)
    return folder


def sources(kit):
    """Cubin -> source."""
    found = {}
    for path in (kit / "sm_90").glob("*.zip"):
        names = [n[: -len(".cubin")] for n in zipfile.ZipFile(path).namelist() if n.endswith(".cubin")]
        found |= {read_member(path, f"{n}.cubin"): read_member(path, f"{n}.cu").decode() for n in names}
    return found


def test_every_kernel_computes_what_the_reference_does(kit, cases, request):
    if find_compiler() is None:
        pytest.skip("needs a C++ compiler")
    card = EmulatedCard(sources(kit))
    steps: list[str] = []
    bench = Bench(card, kit, "sm_90", steps.append)
    for case in cases:
        path = archive_path(kit, "sm_90", case)
        held = len(card.memory)
        # The second plans of one operator, and of all in make nightly.
        ranks = [0, 1] if case is cases[0] or request.config.getoption("--nightly") else [0]
        results = list(measure_operator(bench, path, ranks, 0.0, float("inf")))
        assert [r["verdict"] for r in results] == ["right"] * len(results), f"{case}: {results}"
        assert len(results) == len(ranks) <= len(read_operator(path).plans)
        assert results[0]["us"]["median"] == card.US
        assert len(card.memory) == held and f"{case}#0" in steps
        if case.dtype == "float32" and case.id[0] != "P":
            assert results[0]["error"] == 0, "sums of the kit's inputs are exact"


def test_what_is_written_is_read_back(kit, cases):
    assert verify(kit) == (5 + sum(len(read_operator(archive_path(kit, "sm_90", c)).plans) for c in cases), [])
    operator = read_operator(archive_path(kit, "sm_90", CASES[3]))
    plan = operator.plans[0]
    assert Plan.from_json(plan.plan).device == operator.device == "h200"
    assert image_arch(read_member(archive_path(kit, "sm_90", CASES[3]), plan.image)) == "sm_90"
    assert [p.rank for p in operator.plans] == [0, 1] and plan.predicted_us <= operator.plans[1].predicted_us


def test_damage_is_found(kit, tmp_path):
    shutil.copytree(kit, tmp_path / "kit")
    path = archive_path(tmp_path / "kit", "sm_90", CASES[-1])
    other = read_member(archive_path(kit, "sm_90", CASES[0]), "0.cubin").replace(b"main_kernel", b"many_kernel")
    with zipfile.ZipFile(path) as old:
        files = {n: old.read(n) for n in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, data in {**files, "0.cubin": other}.items():
            new.writestr(name, data)
    archive_path(tmp_path / "kit", "sm_90", CASES[0]).write_bytes(b"half a file")
    path = archive_path(tmp_path / "kit", "sm_90", CASES[3])
    operator = read_operator(path)
    (first, *rest), (plan, *others) = operator.plans[0].launches, operator.plans
    given = replace(plan, launches=(replace(first, arguments=(*first.arguments, first.arguments[0])), *rest))
    files = {n: read_member(path, n) for n in zipfile.ZipFile(path).namelist() if n != "manifest.json"}
    write_archive(path, replace(operator, plans=(given, *others)), files)
    count, wrong = verify(tmp_path / "kit")
    assert len(wrong) == 3 and any("24 B of arguments, and is given 4" in w for w in wrong)
    assert any("E0.float32.zip#0: no kernel main_kernel" in w for w in wrong)
    assert any("C0.float32.zip" in w for w in wrong)


def test_what_is_there_is_kept_and_what_is_damaged_made_again(kit):
    path = archive_path(kit, "sm_90", CASES[-1])
    before = path.stat().st_mtime_ns, (kit / "sm_90" / ARCHIVE).stat().st_mtime_ns
    build_support(kit, "sm_90", OPTIONS)
    build_case(kit, CASES[-1], "sm_90", OPTIONS)
    assert (path.stat().st_mtime_ns, (kit / "sm_90" / ARCHIVE).stat().st_mtime_ns) == before
    path.write_bytes(b"half a file")
    assert build_case(kit, CASES[-1], "sm_90", OPTIONS).plans and read_operator(path).case == CASES[-1]


def test_the_folder_is_all_that_is_needed(kit, tmp_path):
    """Neither this checkout, nor numpy, nor what else is installed here: isolated, without site-packages."""
    copy_runner(kit, SCRIPT)
    moved = tmp_path / "elsewhere"
    shutil.copytree(kit, moved)
    command = [sys.executable, "-I", "-S", moved / "gpu_kit.py", "--out", tmp_path / "out", "--driver", "libabsent.so"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0 and "no device: no CUDA driver" in done.stdout, done.stdout + done.stderr


@pytest.mark.nightly
def test_drawn_plans_come_from_all_candidates_and_are_the_same_each_time(tmp_path):
    if not find_compilers():
        pytest.skip("neither NVRTC nor nvcc here")
    case = Case("M1", "matmul", "m=64 n=128 k=96", "float16")
    made = [build_case(tmp_path / name, case, "sm_90", Options(top=3, spread=True)) for name in "ab"]
    times = [[plan.predicted_us for plan in operator.plans] for operator in made]
    assert times[0] == times[1] == sorted(times[0]) and times[0][-1] > 1.5 * times[0][0]


@pytest.mark.nightly
def test_a_graph_of_operators_fused_and_one_by_one(tmp_path):
    """Attention's heads in small: the fused kernels agree with the operators' own, executed block by block."""
    if not find_compilers():
        pytest.skip("neither NVRTC nor nvcc here")
    build_support(tmp_path, "sm_90", OPTIONS)
    case = Case("F0", "rtasks", "model=attention scale=16", "float32")
    made = build_case(tmp_path, case, "sm_90", OPTIONS)
    fused, apart = made.plans
    assert len(fused.launches) * 3 <= len(apart.launches) and fused.predicted_us < apart.predicted_us
    # One after the other: a projection, a head's products and softmax (largest, sum), and the last projection.
    assert verify(tmp_path)[1] == [] and made.reference.terms == round((2 * 48**0.5 + 4 * 16**0.5) ** 2)
    bench = Bench(EmulatedCard(sources(tmp_path)), tmp_path, "sm_90")
    found = list(measure_operator(bench, archive_path(tmp_path, "sm_90", case), [0, 1], 1.0, float("inf")))
    assert [f["verdict"] for f in found] == ["right", "right"], found


def test_the_digest_names_no_folder_that_is_gone():
    assert all((options.PRODUCT / name / "__init__.py").is_file() for name in options._NO_KERNELS)
    assert all((options.TOOLS / name).is_file() for name in options._MAKES)
