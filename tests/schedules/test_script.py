"""Scripts: every plan is one, reading one back changes nothing, and what does not apply is told in one line."""

import string
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller_tvm import cli
from roller_tvm.device import load_device
from roller_tvm.ir.operators import operator as make
from roller_tvm.ir.operators import parse_operator
from roller_tvm.planner import construct
from roller_tvm.planner.lower import lower
from roller_tvm.roller.features import Features
from roller_tvm.roller.steps import STEPS
from roller_tvm.schedules import ScheduleError, Script
from roller_tvm.schedules.nest import nest_of
from roller_tvm.schedules.scheduled import schedule
from roller_tvm.schedules.script import KIND_OF

from ..expr.examples import EXAMPLES
from ..plan.devices import device as spec_of

WORDS = {name: [name, *words.split()] for name, words in {
    "matmul": "m=256 n=256 k=256", "softmax": "shape=64x1000", "reduce_sum": "shape=8x100000 axis=1",
    "layer_norm": "shape=64x768", "conv2d_nchw": "n=1 c=64 h=56 w=56 f=64 kh=3 kw=3 padding=1",
}.items()}  # fmt: skip

names = st.text(string.ascii_letters + "._*# ,[]\"\\0123456789", min_size=1, max_size=6)


def values_of(field):
    if "tuple" in str(field.type):
        return st.lists(st.integers(0, 99) if "int" in str(field.type) else names, max_size=4).map(tuple)
    return st.integers(-9, 99) if "int" in str(field.type) else names


@st.composite
def steps(draw):
    kind = STEPS[draw(st.sampled_from(sorted(STEPS)))]
    drawn = {f.name: draw(values_of(f)) for f in fields(kind)}
    try:
        return kind(**drawn)
    except ValueError:  # lists of lengths that do not go together
        return STEPS["bind"]("C", "i", "blockIdx.x")


@given(st.lists(steps(), max_size=5))
def test_from_steps_to_text_to_steps(several):
    """Names with any characters, numbers that are names, comments that are none."""
    script = Script(tuple(several))
    assert Script.read(str(script)) == script
    assert str(Script.read(str(script))) == str(script)


def test_every_command_has_a_kind_and_a_level():
    assert set(KIND_OF) == set(STEPS)


@pytest.mark.parametrize("device", ["avx2", "avx512", "v100", "a100"])
def test_every_plan_is_a_script(device):
    for operator, params in EXAMPLES:
        expression = make(operator, **params)
        for ranked in construct(expression, spec_of(device), 3).plans:
            script = Script(lower(ranked.plan))
            assert Script.read(str(script)) == script
            assert str(nest_of(script, expression, spec_of(device)))


@pytest.mark.parametrize("device", ["cpu", "v100"])
@pytest.mark.parametrize("name", sorted(WORDS))
def test_a_script_read_back_has_the_plans_prediction(name, device):
    made = schedule(parse_operator(WORDS[name]), device=device)
    assert schedule(parse_operator(WORDS[name]), str(made), device) == made


def test_a_changed_script_has_the_prediction_of_that_plan():
    expression, spec = parse_operator(WORDS["matmul"]), load_device("v100")
    made = schedule(expression, None, spec)
    changed = schedule(expression, str(made).replace("[1, 32], [k.0", "[1, 16], [k.0"), spec)
    assert changed.script != made.script
    assert changed.seconds is not None and changed.seconds > made.seconds
    assert changed.ranked.plan.programs[0].tile("shared")["k"] == 16


def test_a_schedule_that_the_model_prices_not_has_no_prediction():
    assert schedule(parse_operator(["relu", "shape=64x64"]), "relu.parallel(i0)").seconds is None


def test_commands_of_tensor_cores_go_through():
    """Their loops are known to TensorIR alone."""
    spec = load_device("a100")
    plan = construct(parse_operator(["matmul", "m=256", "n=256", "k=256", "dtype=float16"]), spec, 1,
                     Features.of_tensor_ir(spec)).best.plan  # fmt: skip
    script = Script(lower(plan))
    assert any(step.op == "tensorize" for step in script.steps)
    assert Script.read(str(script)) == script
    assert "TensorIR alone" in str(nest_of(script, plan.expression, spec))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("m.m, m.i]", "m.m, m.q]", "must name every loop"),
        ("cache_write(", "cash_write(", "no command 'cash_write'"),
        ("[4, 4, 16], [n.p", "[4, 4, 1600], [n.p", "loop 'n' has 256"),
        ("[4, 4, 16], [n.p", "[4, 4, 16] [n.p", "comma is missing"),
        ("[4, 4, 16], [n.p", "[4, 0, 16], [n.p", "must be 1 or more"),
        ("[4, 4, 16], [n.p", "4, [n.p", "a list of numbers"),
        ("matmul.parallel(parallel)", "matmul.parallel(k.0)", "has no loop 'k.0'"),
        ("matmul.local.unroll(m.2)", "matmul.local.parallel(k.0)", "adds up"),
        ("compute_at(matmul, n.m)", "compute_at(matmul.local, n.m)", "has no loop"),
        ("matmul.unroll(n.n)", "matmul.inline()", "cannot be computed in place"),
        ("matmul.unroll(n.n)", "what is this", "STAGE.COMMAND"),
        ("matmul.unroll(n.n)", "matmul.unroll(n.n, m.i)", "2 arguments"),
        ("matmul.unroll(n.n)", "matmul.unroll(n.n", "STAGE.COMMAND"),
    ],
)
def test_what_does_not_apply_is_told_in_a_line(old, new, said, tmp_path, capsys):
    """The command, the rule, the remedy."""
    assert old in MATMUL
    file = tmp_path / "script.txt"
    file.write_text(MATMUL.replace(old, new, 1))
    code = cli.main(["plan", *WORDS["matmul"], "--schedule-from", str(file)])
    told = capsys.readouterr().err.strip()
    assert code == 2 and said in told and "remedy: " in told and len(told.splitlines()) == 1


#: A plan of a CPU with vectors of 16.
MATMUL = """
matmul.cache_write(local, matmul.local)
matmul.split(m, [32, 4], [m.p, m.m, m.i])
matmul.split(n, [4, 4, 16], [n.p, n.m, n.n, n.i])
matmul.reorder([m.p, n.p, m.m, n.m, m.i, n.n, n.i])
matmul.fuse([m.p, n.p], parallel)
matmul.parallel(parallel)
matmul.unroll(m.i)
matmul.unroll(n.n)
matmul.vectorize(n.i)
matmul.local.compute_at(matmul, n.m)
matmul.local.split(m, [1, 4, 1], [m.0, m.1, m.2, m.3])
matmul.local.split(n, [1, 4, 16], [n.0, n.1, n.2, n.3])
matmul.local.split(k, [1], [k.0, k.1])
matmul.local.reorder([m.0, n.0, m.1, n.1, k.0, m.2, n.2, k.1, m.3, n.3])
matmul.local.unroll(m.2)
matmul.local.unroll(n.2)
matmul.local.vectorize(n.3)
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[64, 4], [round", "[2048, 4], [round", "threads a block"),
        ("[1, 32], [k.0", "[1, 4096], [k.0", "loop 'k' has 256"),
    ],
)
def test_what_a_card_lacks(old, new, said):
    text = str(schedule(parse_operator(WORDS["matmul"]), device="v100"))
    assert old in text
    with pytest.raises(ScheduleError, match=said):
        schedule(parse_operator(WORDS["matmul"]), text.replace(old, new), "v100")


def test_shared_memory_is_limited():
    words = ["matmul", "m=4096", "n=4096", "k=4096"]
    text = str(schedule(parse_operator(words), device="v100"))
    k = text.split("matmul.local.split(k, [")[1].split("]")[0]
    with pytest.raises(ScheduleError, match="(?s)shared memory of .* a block has .*shorten"):
        schedule(parse_operator(words), text.replace(f"split(k, [{k}]", "split(k, [1, 4096]"), "v100")


def test_the_command_prints_what_it_reads(tmp_path, capsys):
    assert cli.main(["plan", *WORDS["softmax"], "--device", "v100", "--schedule"]) == 0
    text = capsys.readouterr().out
    (file := tmp_path / "s.txt").write_text(text)
    assert cli.main(["plan", *WORDS["softmax"], "--device", "v100", "--schedule-from", str(file)]) == 0
    again = capsys.readouterr().out
    assert again.splitlines()[:-1] == text.splitlines()[:-1]
    assert again.splitlines()[-1].count(text.splitlines()[-1].removeprefix("# predicted ")) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--schedule", "--explain"], "--explain does not go with --schedule"),
        (["--measure"], "--measure goes with --schedule-from"),
        (["--schedule-from", "none.txt"], "none.txt: cannot be read"),
        (["--schedule-from", "x", "--measure", "--device", "v100"], "not on v100"),
    ],
)
def test_options_that_do_not_go_together(words, said, capsys):
    assert cli.main(["plan", *WORDS["softmax"], *words]) == 2
    assert said in capsys.readouterr().err
