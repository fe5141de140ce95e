"""Pipelines of stages compute what numpy does, stage by stage, however the stages are grouped."""

import random

import numpy as np
import pytest

pytestmark = pytest.mark.te
tvm = pytest.importorskip("tvm")
from tvm import te  # noqa: E402

from roller_bench.image_pipelines import PIPELINES, Numpy, Te  # noqa: E402
from roller_tvm.planner import Plan, construct  # noqa: E402
from roller_tvm.planner.lower import lower  # noqa: E402
from roller_tvm.planner.stage_groups import Grouping, GroupSearch  # noqa: E402
from roller_tvm.recipes import RECIPES  # noqa: E402
from roller_tvm.recipes.recipe import Context  # noqa: E402
from roller_tvm.te import read_te  # noqa: E402
from roller_tvm.tvm_env import line  # noqa: E402

from ..plan.devices import device  # noqa: E402
from ..sampling import NIGHTLY, examples  # noqa: E402


def geometry_of(expression, nest):
    from roller_tvm.micro_perf.geometry import Geometry

    return Geometry.of(expression, nest.anchor, nest.inlined, nest.output)


def kernel(tensors, plan_of):
    """Build tensors by the plan of their expression; return the kernel and the plan."""
    if line() == "relax":
        from roller_tvm.codegen.apply_tensorir import apply_steps_tir
        from roller_tvm.relax.rewrites import cpu_code
        from roller_tvm.tir import read_prim_func

        func = te.create_prim_func(tensors)
        reading = read_prim_func(func)
        plan = plan_of(reading.expression)
        mod = cpu_code()(apply_steps_tir(func, reading, lower(plan)).mod)
        return tvm.compile(mod, tvm.target.Target({"kind": "llvm"}))["main"], plan
    from roller_tvm.codegen.apply_te import TeProgram, apply_steps_te
    from roller_tvm.relay.rewrites import cpu_code

    reading = read_te(tensors)
    plan = plan_of(reading.expression)
    schedule, args = apply_steps_te(TeProgram.of_reading(reading, tensors), lower(plan))
    with cpu_code():
        return tvm.build(schedule, args, "llvm"), plan


def answer(function, picture, shape):
    if line() == "relax":
        given, result = tvm.runtime.tensor(picture), tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
    else:
        given, result = tvm.nd.array(picture), tvm.nd.array(np.full(shape, np.nan, "float32"))
    function(given, result)
    return result.numpy()


def check(build, picture, plan_of):
    lang = Te()
    given = lang.picture(picture.shape)
    function, plan = kernel([given, build(lang, given, picture.shape)], plan_of)
    expected = build(Numpy(), picture, picture.shape)
    got = answer(function, picture, expected.shape)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5, err_msg=str(plan))
    return plan


def first(expression):
    return construct(expression, device("avx512"), 1).best.plan


@pytest.mark.parametrize("size", [(33, 47), *([(64, 128), (5, 200)] if NIGHTLY else [])])
@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_computes_what_numpy_does(name, size):
    pipeline = PIPELINES[name]
    plan = check(pipeline.build, pipeline.picture(*size), first)
    assert name == "blur" or {p.recipe for p in plan.programs} == {"cpu.stages"}


def drawn(draw, lang, picture, shape):
    """Return the result of some stages drawn at random; the same for the same state of `draw`."""
    pool, unread = [(picture, shape)], []
    for n in range(draw.randint(3, 6)):
        source, (h, w) = draw.choice(pool[-3:])
        kind = draw.choice(["window", "window", "half", "double", "square"])
        name = f"s{n}"
        if kind == "window" and min(h, w) > 4:
            taps = draw.sample([(i, j) for i in range(3) for j in range(3)], draw.randint(2, 4))
            size = h - 2, w - 2

            def body(y, x, source=source, taps=taps):
                total = source[y + taps[0][0], x + taps[0][1]]
                for i, j in taps[1:]:
                    total = total + source[y + i, x + j] * lang.number(0.5)
                return total
        elif kind == "half" and min(h, w) > 8:
            size = h // 2, w // 2

            def body(y, x, source=source):
                return source[2 * y, 2 * x] - source[2 * y + 1, 2 * x + 1]
        elif kind == "double" and max(h, w) < 60:
            size = 2 * h - 1, 2 * w - 1

            def body(y, x, source=source):
                return source[y // 2, x // 2] + source[(y + 1) // 2, (x + 1) // 2]
        else:
            size = h, w

            def body(y, x, source=source):
                return lang.select(source[y, x] < lang.number(0.5), source[y, x], lang.number(1))
        made = lang.stage(name, size, without_defaults(body))
        unread = [one for one in unread if one[0] is not source]
        pool.append((made, size))
        unread.append((made, size))
    size = min(h for _, (h, _) in unread), min(w for _, (_, w) in unread)

    def total(y, x):
        value = unread[0][0][y, x]
        for other, _ in unread[1:]:
            value = value + other[y, x]
        return value * value

    return lang.stage("result", size, total)


def without_defaults(body):
    return lambda y, x: body(y, x)


def any_grouping(draw):
    """Return a function that plans with stages grouped at random, and tiles of the slower half too."""

    def plan_of(expression):
        spec = device("avx512")
        search = GroupSearch(expression, spec)
        now = Grouping(frozenset(), {stage.name: stage.name for stage in expression.stages})
        for _ in range(draw.randint(1, 2 * len(expression.stages))):
            steps = [step for step in search.steps(now) if search.seconds(step) < float("inf")]
            if not steps:
                break
            now = draw.choice(steps)
        programs = []
        for nest in search.nests(now):
            found = RECIPES["cpu.stages"].candidates(Context(geometry_of(expression, nest), spec, nest), 20)
            programs.append(draw.choice(found).pair[0])
        return Plan(expression, spec.name, tuple(programs))

    return plan_of


@pytest.mark.parametrize("seed", range(examples(36)))
def test_any_grouping_of_any_stages_computes_the_same(seed):
    draw = random.Random(seed)
    shape = draw.randint(12, 50), draw.randint(12, 50)
    picture = np.random.default_rng(seed).random(shape, dtype=np.float32)
    check(lambda lang, given, size: drawn(random.Random(seed), lang, given, size), picture, any_grouping(draw))


def test_windows_may_be_sums():
    """Written as reductions, with the stages between them kept for a tile."""
    lang = Te()
    picture = lang.picture((40, 70))
    rows, columns = te.reduce_axis((0, 7), name="r"), te.reduce_axis((0, 7), name="s")
    down = te.compute((34, 70), lambda y, x: te.sum(picture[y + rows, x], axis=rows), name="down")
    across = te.compute((34, 64), lambda y, x: te.sum(down[y, x + columns], axis=columns), name="across")
    function, plan = kernel([picture, across], first)
    assert [(p.recipe, p.staged) for p in plan.programs] == [("cpu.stages", ("down",))]
    values = np.random.default_rng(0).random((40, 70), dtype=np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(values, (7, 7)).sum(axis=(2, 3))
    np.testing.assert_allclose(answer(function, values, (34, 64)), windows, rtol=1e-4)


def test_products_are_no_pipelines():
    """A convolution of few channels reads windows, and reuses them for its filters: it stays a product."""
    lang = Te()
    picture = lang.picture((3, 30, 30))
    weight = te.placeholder((16, 3, 3, 3), name="weight")
    c, i, j = (te.reduce_axis((0, 3), name=name) for name in "cij")
    bright = te.compute(picture.shape, lambda c, y, x: picture[c, y, x] * lang.number(2), name="bright")
    conv = te.compute(
        (16, 28, 28), lambda f, y, x: te.sum(bright[c, y + i, x + j] * weight[f, c, i, j], axis=[c, i, j])
    )
    recipes = {p.recipe for p in first(read_te([picture, weight, conv]).expression).programs}
    assert "cpu.stages" not in recipes
