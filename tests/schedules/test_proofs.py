"""Proofs: correct kernels are proven, on either line; what is undecided says why; islpy may be absent."""

import math
import sys
from itertools import count
from types import SimpleNamespace

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("islpy")
pytestmark = pytest.mark.te

from roller_tvm import cli  # noqa: E402
from roller_tvm.ir.operators import parse_params  # noqa: E402
from roller_tvm.models.line import model_line  # noqa: E402
from roller_tvm.models.planning import planning_on  # noqa: E402
from roller_tvm.schedules.proofs import UNDECIDED, Finding, prove  # noqa: E402
from roller_tvm.schedules.proofs.kernel import Kernel  # noqa: E402
from roller_tvm.schedules.proofs.sets import NoIntegerSets, library  # noqa: E402
from roller_tvm.schedules.scheduled import schedule  # noqa: E402
from roller_tvm.te import te_operator  # noqa: E402
from roller_tvm.tvm_env.locate import usable_line  # noqa: E402

from ..plan.devices import device  # noqa: E402
from ..sampling import sampled  # noqa: E402

WORDS = [
    "matmul m=64 n=64 k=64", "softmax shape=64x100", "conv2d_nchw n=1 c=8 h=14 w=14 f=16 kh=3 kw=3 padding=1",
    "reduce_sum shape=8x10000 axis=1", "transpose shape=64x96 perm=1,0", "matmul m=60 n=97 k=33",
    "layer_norm shape=8x64", "max_pool2d_nchw n=1 c=8 h=15 w=15 k=3 stride=2 padding=1", "add shape=30x70",
    "dense m=1 n=100 k=64 bias=1 relu=1", "depthwise_conv2d_nchw n=1 c=8 h=14 w=14 k=3 padding=1",
]  # fmt: skip

def proof_of(words, name, change=lambda steps: steps):
    operator, *params = words.split()
    return proof_of_tensors(list(te_operator(operator, **parse_params(" ".join(params)))), name, change)


def proof_of_tensors(tensors, name, change=lambda steps: steps):
    line = model_line(usable_line("a test"))
    spec, features = planning_on(usable_line("a test"), device(name))
    steps = schedule(line.read(tensors), None, spec, features).script.steps
    return line.prove(tensors, change(steps), spec)


@pytest.mark.one_line
@pytest.mark.parametrize(
    ("words", "name"),
    sampled([(w, n) for n in ("avx512", "v100") for w in WORDS], 3, always=[(WORDS[1], "v100")]),
)
def test_rollers_kernels_are_proven(words, name):
    proof = proof_of(words, name)
    assert proof.answer == "proven", proof
    assert {f.rule for f in proof.findings} == {
        "bounds", "written", "memory", "barriers", "races", "initialised", "values"
    }  # fmt: skip


@pytest.mark.parametrize("name", ["avx512", "v100"])
def test_a_sum_that_is_read_in_two_ways_is_proven(name):
    """Hard swish of a product: its stages are one statement in the schedule, several before."""
    from tvm import te

    tir = tvm.tir if hasattr(tvm, "tir") else tvm.tirx
    a, b, bias = te.placeholder((64, 32), name="a"), te.placeholder((32, 64), name="b"), te.placeholder((64,), name="c")
    k = te.reduce_axis((0, 32), name="k")
    product = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="product")
    shifted = te.compute((64, 64), lambda i, j: product[i, j] + bias[j], name="shifted")
    gate = te.compute((64, 64), lambda i, j: te.max(te.min(shifted[i, j] + 3.0, tir.const(6.0)), tir.const(0.0)) / 6.0)
    out = te.compute((64, 64), lambda i, j: shifted[i, j] * gate[i, j], name="out")
    proof = proof_of_tensors([a, b, bias, out], name)
    assert proof.answer == "proven", proof


def test_the_command_says_it(capsys):
    assert cli.main(["plan", *WORDS[4].split(), "--device", "v100", "--prove"]) == 0
    assert "proven: bounds, written, memory, barriers, races, initialised, values" in capsys.readouterr().out


def test_without_islpy_the_remedy_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "islpy", None)
    with pytest.raises(NoIntegerSets, match=r"pip install 'roller-tvm\[proof\]'"):
        library()


def test_an_answer_does_not_depend_on_the_speed_of_the_machine(monkeypatch):
    words = "conv2d_nchw n=1 c=8 h=13 w=13 f=16 kh=3 kw=3 padding=1"
    monkeypatch.setattr(prove, "FIRST", 500)  # several tries
    monkeypatch.setattr(prove, "time", SimpleNamespace(process_time=count(0.0, 1e6).__next__))
    assert proof_of(words, "v100").answer == "proven"
    monkeypatch.setattr(prove, "SECONDS", 2.0)  # as for users
    told = proof_of(words.replace("13", "12"), "v100")
    assert told.answer == "undecided" and "too much work for isl" in str(told)


def test_a_question_of_too_much_work_is_undecided(monkeypatch):
    def endless():
        asked.append(None)
        raise library().Error("isl_map_range failed")

    asked, parts = [], count()
    kernel, tries = Kernel(), prove.OPERATIONS // prove.FIRST_OF_VALUES
    told = prove._asked("values", endless, kernel, prove.Work(prove.OPERATIONS, math.inf))
    assert told == Finding("values", UNDECIDED, "too much work for isl (isl_map_range)")
    assert 2 ** len(asked) - 1 <= tries < 2 ** (len(asked) + 1) - 1, "all fit, one more would not"
    asked.clear()
    prove._asked("values", endless, kernel, prove.Work(prove.OPERATIONS, math.inf), lambda: next(parts))
    assert len(asked) == tries, "each try knows more than the one before"
