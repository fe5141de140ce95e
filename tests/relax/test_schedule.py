"""ScheduleWithRoller: what it schedules, what it leaves, and that answers stay the same."""

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.relax

from tvm import relax  # noqa: E402

from roller_tvm.errors import BadInput, TargetError  # noqa: E402
from roller_tvm.relax.rewrites import MARKS  # noqa: E402
from roller_tvm.relax.schedule import SCHEDULED, ScheduleWithRoller  # noqa: E402

from . import modules  # noqa: E402

CUDA = {"kind": "cuda", "arch": "sm_80", "host": "llvm"}


def functions(mod):
    return {v.name_hint: f for v, f in mod.functions_items() if type(f).__name__ == "PrimFunc"}


def test_every_function_is_scheduled_and_the_answers_stay():
    mod, pass_ = modules.network(), ScheduleWithRoller(modules.TARGET)
    x = np.random.default_rng(0).standard_normal((16, 24), dtype=np.float32)
    before = {name: f.script() for name, f in functions(mod).items()}
    after = pass_(mod)
    assert len(pass_.report.scheduled) == len(pass_.report.notes) == len(before) and not pass_.report.left
    assert all(f.attrs[SCHEDULED] for f in functions(after).values())
    assert {name: f.script() for name, f in functions(mod).items()} == before, "the module given was changed"
    np.testing.assert_allclose(modules.answer(after, x), modules.answer(mod, x), rtol=1e-5, atol=1e-5)


def test_the_report_names_recipe_and_time():
    pass_ = ScheduleWithRoller(modules.TARGET)
    pass_(modules.network())
    head, *lines = str(pass_.report).splitlines()
    assert head.startswith(f"ScheduleWithRoller: {len(lines)} of {len(lines)} functions in ")
    assert any("cpu.tiled, predicted" in line for line in lines)


def test_attributes_and_names_stay():
    after = functions(ScheduleWithRoller(modules.TARGET)(modules.network()))
    for name, func in functions(modules.network()).items():
        assert {*func.attrs.keys(), SCHEDULED, MARKS["edge_vectors"]} == set(after[name].attrs.keys())


def test_it_takes_the_target_in_scope():
    with modules.TARGET:
        assert all(SCHEDULED in f.attrs for f in functions(ScheduleWithRoller()(modules.network())).values())


def test_without_a_target_it_says_so():
    with pytest.raises(TargetError, match="no target is known"):
        ScheduleWithRoller()(modules.network())


def test_what_is_scheduled_is_left_alone():
    mod = ScheduleWithRoller(modules.TARGET)(modules.network())
    again = ScheduleWithRoller(modules.TARGET)
    result = again(mod)
    assert not again.report.scheduled and "marked as scheduled" in str(again.report)
    assert all(f.same_as(functions(mod)[name]) for name, f in functions(result).items())


def test_loops_changed_by_hand_are_left_alone():
    schedule = tvm.s_tir.Schedule(modules.matmul())
    loop = schedule.get_loops(schedule.get_sblock("product"))[0]
    schedule.parallel(loop)
    pass_ = ScheduleWithRoller(modules.TARGET)
    result = pass_(schedule.mod)
    assert "is annotated" in pass_.report.left[0].reason
    assert result["main"].same_as(schedule.mod["main"])


def test_a_module_that_is_not_legalized_is_refused():
    with pytest.raises(BadInput, match="not legalized: it calls relax.matmul"):
        ScheduleWithRoller(modules.TARGET)(modules.unfused())


def test_equal_functions_are_planned_once(monkeypatch):
    from roller_tvm.relax import schedule as module

    planned = []
    monkeypatch.setattr(
        module, "make_candidates",
        lambda func, *args, make=module.make_candidates: planned.append(func) or make(func, *args))  # fmt: skip
    mod = tvm.IRModule({"a": modules.matmul().with_attr("global_symbol", "a"),
                        "b": modules.matmul().with_attr("global_symbol", "b")})  # fmt: skip
    after = ScheduleWithRoller(modules.TARGET)(mod)
    assert len(planned) == 1
    assert [str(f.attrs["global_symbol"]) for f in (after["a"], after["b"])] == ["a", "b"]


def test_kernels_for_cuda_bind_their_threads():
    with tvm.target.Target(CUDA):
        after = ScheduleWithRoller()(modules.network())
        for name, func in functions(after).items():
            assert "blockIdx.x" in func.script(), name
        tvm.compile(after, target=tvm.target.Target(CUDA), relax_pipeline=relax.get_pipeline("default_build"))


def test_rows_whose_reduction_keeps_its_axis_are_kept_in_shared_memory():
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((1, 128, 768), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            mean = builder.emit(relax.op.mean(x, [-1], keepdims=True))
            out = builder.emit_output(builder.emit(relax.op.subtract(x, mean)))
        builder.emit_func_output(out)
    mod = tvm.transform.Sequential(modules.FUSE)(builder.get())
    pass_ = ScheduleWithRoller(CUDA)
    (func,) = [f for n, f in functions(pass_(mod)).items() if "subtract" in n]
    assert not pass_.report.left, str(pass_.report)
    assert "gpu.rows" in str(pass_.report) and 'scope="shared"' in func.script()


def test_a_device_of_another_kind_is_refused():
    with pytest.raises(TargetError, match="'h200' is a gpu"):
        ScheduleWithRoller(modules.TARGET, device="h200")(modules.network())
