"""The four levels as sets and maps: isl reads them, and they count what the operator counts."""

from pathlib import Path

import pytest

isl = pytest.importorskip("islpy")

from roller_tvm.ir.operators import operator, parse_params  # noqa: E402
from roller_tvm.schedules.levels import levels_of  # noqa: E402

from ..plan.devices import device  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "blur.md"


def size(text):
    counts = []
    isl.UnionSet(text).foreach_set(lambda s: counts.append(s.count_val().to_python()))
    return sum(map(int, counts))


def test_levels_of_an_expression_count_its_iterations():
    levels = levels_of(operator("conv2d_nchw", n=1, c=3, h=8, w=8, f=4, kh=3, kw=3, padding=1))
    assert size(levels.domain) == 3 * 10 * 10 + 4 * 8 * 8 * 3 * 3 * 3
    assert size(str(isl.UnionMap(levels.writes).range())) == 3 * 10 * 10 + 4 * 8 * 8
    assert isl.UnionMap(levels.schedule).is_injective()
    assert size(str(isl.UnionMap(levels.reads).range())) == 3 * 8 * 8 + 4 * 3 * 3 * 3 + 3 * 10 * 10
    assert str(levels).count("III storage") == 4


@pytest.mark.te
@pytest.mark.parametrize("name", ["avx2", "v100"])
def test_levels_of_a_scheduled_function_agree_with_the_operator(name):
    pytest.importorskip("tvm")
    from roller_tvm.models.line import model_line
    from roller_tvm.models.planning import planning_on
    from roller_tvm.schedules.scheduled import schedule
    from roller_tvm.te import te_operator
    from roller_tvm.tvm_env.locate import usable_line

    tensors, line = list(te_operator("matmul", **parse_params("m=16 n=16 k=16"))), model_line(usable_line("a test"))
    spec, features = planning_on(usable_line("a test"), device(name))
    steps = schedule(line.read(tensors), None, spec, features).script.steps
    levels = line.levels(tensors, steps, spec)
    output = tensors[-1].op.name
    written = isl.UnionMap(levels.writes).range().intersect(isl.UnionSet(f"{{ {output}[i, j] }}"))
    assert size(str(written)) == 16 * 16
    sums = isl.UnionMap(levels.reads).intersect_range(isl.UnionSet("{ A[i, j] }")).domain()
    assert size(str(sums)) in (16**3, 16**2)  # of the product itself, or of a copy
    placed = isl.UnionMap(levels.schedule)
    assert placed.is_single_valued() and placed.is_injective()
    if name == "v100":
        assert "threadIdx_x" in levels.schedule and "-> shared[" in levels.storage
        assert not isl.UnionSet(levels.barriers).is_empty() and "A[" in levels.copies


@pytest.mark.relax
@pytest.mark.parametrize("form", ["cpu", "gpu"])
def test_the_blur_of_the_tutorial_is_proven_and_drawn(form, tmp_path):
    pytest.importorskip("tvm")
    from roller_bench.figures.iteration_space import SCRIPTS, draw, levels_of_blur, points_of, scheduled_blur
    from roller_tvm.relax.proving import prove

    assert prove(*scheduled_blur(form)).answer == "proven"
    levels = levels_of_blur(form)
    points, names = points_of(levels, "by")
    assert len(points) == len(set(points.values())) == 16 * 16
    assert any(name.startswith("parallel" if form == "cpu" else "blockIdx") for name in names)
    assert SCRIPTS[form] in PAGE.read_text()
    pytest.importorskip("matplotlib")
    draw(levels, "by", "by", tmp_path / "by.svg")
    assert (tmp_path / "by.svg").read_text().count("<text") > 16 * 16
