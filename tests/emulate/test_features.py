"""Plans with the Relax line's words, executed: tensor cores, copies ahead in several stages, for awkward shapes too."""

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("tvm.tirx", reason="needs the Relax line")
pytestmark = pytest.mark.relax

from tvm import te  # noqa: E402

from roller_check.relax_plans import check_plan  # noqa: E402
from roller_tvm.planner import construct  # noqa: E402
from roller_tvm.roller.features import Features  # noqa: E402
from roller_tvm.te import te_operator  # noqa: E402
from roller_tvm.tir import read_prim_func  # noqa: E402

from ..lower.gpu_check import spread  # noqa: E402
from ..plan.devices import device  # noqa: E402
from ..sampling import sampled  # noqa: E402


def matmul(m, n, k, dtype, result, transposed=False):
    a = te.placeholder((m, k), dtype, name="A")
    b = te.placeholder((n, k) if transposed else (k, n), dtype, name="B")
    r = te.reduce_axis((0, k), name="r")

    def product(i, j):
        right = b[j, r] if transposed else b[r, j]
        return te.sum(a[i, r].astype(result) * right.astype(result), axis=r)

    return [a, b, te.compute((m, n), product, name="C")]


CASES = {
    "half": (matmul(128, 128, 96, "float16", "float32"), "gpu.tensor"),
    "half, transposed": (matmul(64, 128, 128, "float16", "float32", True), "gpu.tensor"),
    "half, summed in half": (matmul(64, 64, 64, "float16", "float16"), "gpu.tensor"),
    "half, awkward": (matmul(100, 70, 56, "float16", "float32"), "gpu.tensor"),
    "bytes": (matmul(64, 64, 128, "int8", "int32", True), "gpu.tensor"),
    "float": (matmul(128, 96, 64, "float32", "float32"), "gpu.tiled"),
    "float, awkward": (matmul(100, 75, 36, "float32", "float32"), "gpu.tiled"),
    "convolution": (
        te_operator("conv2d_nchw", n=1, c=16, h=14, w=14, f=32, kh=3, kw=3, stride=1, padding=1, bias=True, relu=True),
        "gpu.tiled",
    ),
}


@pytest.mark.parametrize("name", sampled(CASES, always=("bytes",)))
def test_plans(name):
    tensors, recipe = CASES[name]
    reading = read_prim_func(te.create_prim_func(list(tensors)))
    gpu = device("a100")
    plans = [r.plan for r in construct(reading.expression, gpu, top=20, features=Features.of_tensor_ir(gpu)).plans]
    assert any(p.recipe == recipe for plan in plans for p in plan.programs)
    for plan in spread([p for p in plans if any(q.recipe == recipe for q in p.programs)], 3):
        checked = check_plan(plan, tensors, "sm_80")
        assert checked.elements == checked.of_elements


def test_every_function_of_a_module(monkeypatch):
    from roller_check.relax_plans import check_module
    from roller_tvm.errors import WrongAnswer
    from roller_tvm.relax.schedule import ScheduleWithRoller
    from roller_tvm.relax.targets import make_target

    from ..relax import modules, networks

    target = make_target({"kind": "cuda", "arch": "sm_80"})
    with target:
        before = tvm.transform.Sequential(modules.FUSE)(networks.classifier())
    pass_ = ScheduleWithRoller(target)
    after = pass_(before)
    found = check_module(before, after, target)
    assert sorted(found) == sorted(n.name for n in pass_.report.scheduled)
    assert all(getattr(result, "elements", 0) > 0 for result in found.values()), found
    # A kernel that computes something else is told from the others.
    (first, *_) = (v for v in after.functions if v.name_hint == sorted(found)[0])
    other = next(v for v in before.functions if v.name_hint == first.name_hint)
    wrong = tvm.IRModule({**dict(before.functions_items()), other: altered(before[other])})
    assert isinstance(check_module(wrong, after, target, names=[first.name_hint])[first.name_hint], WrongAnswer)


def altered(func):
    """The function with another constant or operation in its first block."""
    text = func.script()
    old, new = next((old, new) for old, new in ((" + ", " - "), (" * ", " + "), ("T.max", "T.min")) if old in text)
    lines = text.split("\n")
    at = next(n for n, line in enumerate(lines) if old in line and "=" in line and "[" in line)
    lines[at] = lines[at].replace(old, new, 1)
    return tvm.script.from_source("\n".join(lines))
