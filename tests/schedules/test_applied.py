"""Scripts on TVM's schedules: the loops are those that we print, and a script's kernel answers as TVM's own."""

import re

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.te

from roller_tvm.ir.operators import parse_operator, parse_params  # noqa: E402
from roller_tvm.schedules.nest import nest_of  # noqa: E402
from roller_tvm.schedules.renaming import renamed  # noqa: E402
from roller_tvm.schedules.scheduled import schedule  # noqa: E402
from roller_tvm.te import te_operator  # noqa: E402

from ..cli.command import main  # noqa: E402

WORDS = ["matmul m=64 n=64 k=64", "softmax shape=64x100", "reduce_sum shape=8x10000 axis=1",
         "conv2d_nchw n=1 c=16 h=14 w=14 f=16 kh=3 kw=3 padding=1", "add shape=30x70", "matmul m=60 n=97 k=33",
         "depthwise_conv2d_nchw n=1 c=16 h=14 w=14 k=3 padding=1", "transpose shape=64x96 perm=1,0"]  # fmt: skip


@pytest.mark.relax
@pytest.mark.parametrize("device", ["avx512", "v100"])
@pytest.mark.parametrize("words", WORDS)
def test_loops_are_tvms(words, device):
    """Extents and kinds of loops of every block, from TVM's schedule."""
    pytest.importorskip("tvm.s_tir")
    from tvm import te

    from roller_tvm.codegen.apply_tensorir import TirApplier
    from roller_tvm.tir import read_prim_func

    from ..plan.devices import device as made_up

    name, *params = words.split()
    func = te.create_prim_func(list(te_operator(name, **parse_params(" ".join(params)))))
    reading = read_prim_func(func)
    spec = made_up(device)
    script = schedule(reading.expression, None, spec).script
    nest = nest_of(script, reading.expression, spec)
    if nest.opaque or "rfactor" in str(script):
        pytest.skip("loops that TensorIR alone knows, or merges")
    applier = TirApplier(tvm.s_tir.Schedule(func), reading)
    applier.run(script.steps)
    for stage, body in nest.bodies.items():
        if body.inlined:
            continue
        loops = applier.schedule.get_loops(applier.blocks[stage])
        extents = [e for loop in loops if (e := int(applier.schedule.get(loop).extent)) > 1]
        own = [loop.extent for loop in body.loops if loop.extent > 1]  # TVM adds loops of one trip
        assert extents[len(extents) - len(own) :] == own, stage


@pytest.mark.one_line
@pytest.mark.parametrize("words", WORDS[:3])
def test_a_script_is_built_and_timed(words, tmp_path, capsys):
    code, text, _ = main(capsys, "plan", *words.split(), "--schedule")
    assert code == 0
    (file := tmp_path / "s.txt").write_text(text)
    code, out, err = main(capsys, "plan", *words.split(), "--schedule-from", file, "--measure")
    assert code == 0, err
    assert out.splitlines()[-1].startswith("# measured ") and "Roller's own" in out.splitlines()[-1]


def test_tvms_names_of_the_same_operator():
    from roller_tvm.models.line import model_line
    from roller_tvm.tvm_env.locate import usable_line

    named = parse_operator(WORDS[0].split())
    read = model_line(usable_line("a test")).read(list(te_operator("matmul", m=64, n=64, k=64)))
    made = schedule(named, device="v100")
    script = renamed(made.script, named, read)
    told = str(nest_of(script, read))
    assert "T_matmul_NN" in told
    assert re.findall(r" in \d+.*", told) == re.findall(r" in \d+.*", str(made.nest))
