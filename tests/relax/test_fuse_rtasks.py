"""FuseRTasks: graphs of small operators as one kernel a plan, executed by the emulator and compared with TVM's own."""

from dataclasses import replace

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.relax

from tvm import relax  # noqa: E402

from roller_check.relax_model import EmulatedModel  # noqa: E402
from roller_tvm.codegen import compile_cuda, find_compilers  # noqa: E402
from roller_tvm.codegen.cuda_text import CudaSource  # noqa: E402
from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.errors import TargetError, TvmLineError, UsageError  # noqa: E402
from roller_tvm.rammer.cuda_functions import CannotFuse  # noqa: E402
from roller_tvm.rammer.makers import KernelMaker  # noqa: E402
from roller_tvm.relax import FuseRTasks, build, rtask_graph, tune  # noqa: E402
from roller_tvm.relax import fused_function as fused_func  # noqa: E402
from roller_tvm.relax.fused_function import kernels_of  # noqa: E402
from roller_tvm.relax.package import save_model, with_signature  # noqa: E402
from roller_tvm.relax.pipeline import lower, prepare, schedule  # noqa: E402
from roller_tvm.relax.resources import cuda_sources, resources_of  # noqa: E402
from roller_tvm.relax.targets import make_target  # noqa: E402
from roller_tvm.relax.tasks import extract_tasks  # noqa: E402
from tests.plan.devices import device  # noqa: E402
from tests.relax.networks import LLVM, default, module, run, values  # noqa: E402
from tests.sampling import sampled  # noqa: E402

A100 = {"kind": "cuda", "arch": "sm_80"}
F32 = "float32"


def weight(*shape):
    return relax.const(values(*shape))


def conv(builder, x, channels, filters, kernel):
    w = weight(filters, channels, kernel, kernel)
    return builder.emit(relax.op.nn.relu(builder.emit(relax.op.nn.conv2d(x, w, padding=kernel // 2))))


def inception(builder, x):
    """Four branches, put side by side."""
    pool = builder.emit(relax.op.nn.max_pool2d(x, (3, 3), padding=(1, 1)))
    branches = [
        conv(builder, x, 8, 8, 1), conv(builder, conv(builder, x, 8, 4, 1), 4, 8, 3),
        conv(builder, conv(builder, x, 8, 4, 1), 4, 8, 5), conv(builder, pool, 8, 8, 1),
    ]  # fmt: skip
    return relax.op.concat(branches, axis=1)


def attention(builder, x):
    """One head: q, k and v of one input."""
    q, k, v = (builder.emit(relax.op.matmul(x, weight(32, 16))) for _ in range(3))
    scores = builder.emit(relax.op.matmul(q, builder.emit(relax.op.permute_dims(k))))
    return relax.op.matmul(builder.emit(relax.op.nn.softmax(scores)), v)


def lstm(builder, x, h, c):
    """One step: four gates, two states."""
    def gate(activation):
        own = builder.emit(relax.op.matmul(x, weight(16, 16)))
        other = builder.emit(relax.op.matmul(h, weight(16, 16)))
        return builder.emit(activation(builder.emit(relax.op.add(own, other))))

    i, f, o = (gate(relax.op.sigmoid) for _ in range(3))
    g = gate(relax.op.tanh)
    kept, new = builder.emit(relax.op.multiply(f, c)), builder.emit(relax.op.multiply(i, g))
    state = builder.emit(relax.op.add(kept, new))
    return relax.Tuple([builder.emit(relax.op.multiply(o, builder.emit(relax.op.tanh(state)))), state])


def residual(builder, x):
    """Two layers, each with its input added; the first one's result is a result of the model too."""
    y = builder.emit(relax.op.add(conv(builder, x, 8, 8, 3), x))
    z = builder.emit(relax.op.add(conv(builder, y, 8, 8, 3), y))
    return relax.Tuple([z, y])


def halves(builder, x):
    """A function of several results, each read by another branch, seen through a view."""
    flat = builder.emit(relax.op.reshape(builder.emit(relax.op.nn.relu(x)), (16, 32)))
    both = builder.emit(relax.op.split(flat, 2, axis=0))
    first, second = (builder.emit(relax.TupleGetItem(both, n)) for n in range(2))
    left = builder.emit(relax.op.matmul(first, weight(32, 8)))
    return relax.op.add(left, builder.emit(relax.op.matmul(second, weight(32, 8))))


NETS = {
    "inception": (inception, (1, 8, 8, 8)),
    "attention": (attention, (8, 32)),
    "lstm": (lstm, (1, 16), (1, 16), (1, 16)),
    "residual": (residual, (1, 8, 8, 8)),
    "halves": (halves, (1, 16, 32)),
}


def emulate(mod, shapes, folder, inputs=None, fuse=True):
    """(results of each run, functions called, the pass) of a module built for cuda and executed on the CPU."""
    signature = {f"x{n}": (shape, F32) for n, shape in enumerate(shapes)}
    fuse = FuseRTasks(make_target(A100)) if fuse is True else fuse
    path = save_model(build(with_signature(mod, signature), A100, fuse_rtasks=fuse), folder / "model.so")
    steps = []
    model = EmulatedModel(path, told=steps.append)
    results = [model.run(dict(zip(signature, given, strict=True))) for given in inputs]
    return results, steps[: len(steps) // len(inputs)], fuse


@pytest.mark.parametrize("name", sampled(NETS, always=["attention"]))
def test_answers_stay_and_launches_go(name, tmp_path):
    body, *shapes = NETS[name]
    mod = module(body, *shapes)
    runs = [[values(*shape) for shape in shapes] for _ in range(2)]  # twice: barriers are set back
    results, steps, fuse = emulate(mod, shapes, tmp_path, runs)
    for given, made in zip(runs, results, strict=True):
        for result, expected in zip(made, default(mod, *given), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)
    report = fuse.report
    assert not report.outside and not report.regions[0].refused
    assert sum(s.kernels for s in steps) == report.launches
    assert report.launches == 1 < report.sequential_launches


@pytest.mark.nightly
def test_products_on_tensor_cores_are_fused_too(tmp_path):
    """Half precision: fragments, copies that run ahead, and a softmax of other threads, in one kernel."""
    def half(*shape):
        return relax.const((values(*shape) * 0.2).astype("float16"))

    def body(builder, x):
        q, k = (builder.emit(relax.op.matmul(x, half(64, 64))) for _ in range(2))
        return relax.op.nn.softmax(builder.emit(relax.op.matmul(q, k)))

    mod, x = module(body, (64, 64), dtype="float16"), values(64, 64).astype("float16")
    fuse = FuseRTasks(make_target(A100))
    executable = build(with_signature(mod, {"x0": ((64, 64), "float16")}), A100, fuse_rtasks=fuse)
    (result,) = EmulatedModel(save_model(executable, tmp_path / "model.so")).run({"x0": x})
    np.testing.assert_allclose(result, default(mod, x)[0], rtol=2e-2, atol=2e-3)
    (part,) = fuse.report.regions[0].plan.parts
    assert "gpu.tensor" in {program.recipe for _, kernel in part.kernels for program in kernel.plan.programs}


def called(builder, x):
    """Branches, of which one goes through a call into a library and comes back."""
    first = conv(builder, x, 8, 8, 3)
    out = relax.TensorType((1, 8, 8, 8), F32)
    away = builder.emit(relax.call_dps_packed("roller_tvm.test.twice", relax.Tuple([first]), out))
    back = conv(builder, away, 8, 8, 1)
    other = conv(builder, conv(builder, first, 8, 8, 1), 8, 8, 3)
    return relax.op.add(back, other)


@pytest.mark.nightly
def test_a_call_into_a_library_stays_where_it_is(tmp_path):
    """What comes back from outside is in a later plan: no plan waits for itself."""
    @tvm.register_global_func("roller_tvm.test.twice", override=True)
    def twice(x, y):
        y.copyfrom(x.numpy() * 2)

    mod, x = module(called, (1, 8, 8, 8)), values(1, 8, 8, 8)
    (made,), steps, fuse = emulate(mod, [(1, 8, 8, 8)], tmp_path, [[x]])
    np.testing.assert_allclose(made[0], default(mod, x)[0], rtol=1e-3, atol=1e-4)
    ((name, reason),) = fuse.report.outside
    assert "roller_tvm.test.twice" in name and "call_dps_packed" in reason
    assert len(fuse.report.regions) == 2
    assert sum(s.kernels for s in steps) < fuse.report.sequential_launches
    assert [names for _, names in sorted(kernels_of(FuseRTasks(A100)(mod)).items())]


@pytest.mark.nightly
def test_shapes_known_at_run_time_stay_outside(tmp_path):
    n = tvm.tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    x, y = relax.Var("x0", relax.TensorType((4, 16), F32)), relax.Var("x1", relax.TensorType((n, 8), F32))
    with builder.function("main", [x, y]):
        with builder.dataflow():
            p, q = (builder.emit(relax.op.matmul(x, weight(16, 8))) for _ in range(2))
            s = builder.emit(relax.op.add(p, q))
            wide = builder.emit(relax.op.matmul(y, builder.emit(relax.op.permute_dims(s))))
            out = builder.emit_output(relax.Tuple([wide, s]))
        builder.emit_func_output(out)
    mod = builder.get()
    given = [values(4, 16), values(5, 8)]
    (made,), _, fuse = emulate(mod, [(4, 16), ("n", 8)], tmp_path, [given])
    for result, expected in zip(made, default(mod, *given), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    assert [reason for _, reason in fuse.report.outside] == ["its sizes are known only at run time"]
    assert fuse.report.functions


def test_plain_tvm_compiles_a_kernel_a_plan():
    """The pass in a pipeline that knows nothing of it: TVM's default one."""
    mod = module(attention, (8, 32))
    with make_target(A100) as target:
        fuse = FuseRTasks()
        fused = fuse(mod)
        built = tvm.compile(fused, target)
    (source,) = cuda_sources(built.mod)
    assert [k.name for k in CudaSource(source).kernels] == [f"{name}_kernel" for name in fuse.report.functions]
    assert fuse.report.launches == len(fuse.report.functions) == 1
    assert kernels_of(fused)["rtasks_0"] == tuple(o for o, _ in fuse.report.regions[0].plan.parts[0].kernels)
    assert "main" in str(mod) and not kernels_of(mod)  # the given module is as it was


def test_a_plan_is_captured_in_a_cuda_graph():
    """By TVM's own pass, as any kernel; what it hands on within lies in memory that is the graph's."""
    def body(builder, x):  # the model's input and its result are no memory of the graph's
        def away(x, channels):
            out = relax.TensorType((1, channels, 8, 8), F32)
            return builder.emit(relax.call_dps_packed("roller_tvm.test.twice", relax.Tuple([x]), out))

        return away(builder.emit(inception(builder, away(x, 8))), 32)

    target = make_target(A100)
    fuse = FuseRTasks(target, top=2)
    with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": True}), target:
        mod, _ = schedule(prepare(module(body, (1, 8, 8, 8)), target), target, fuse_rtasks=fuse)
        made = lower(target)(mod)
    ((name, kernel),) = fuse.report.kernels.items()
    captured, (workspace,) = str(made["main_cuda_graph_capture"]), kernel.host.between
    assert f"{name}(lv, " in captured and f"alloc2: R.Tensor(({workspace.shape[0]},)" in captured
    assert kernel.resident and fuse.report.regions[0].plan.launch == "graph"


@pytest.mark.skipif(not find_compilers(), reason="no CUDA compiler")
@pytest.mark.parametrize("arch", sampled(["sm_80", "sm_90"], always=["sm_90"]))  # the Relay line has the other
def test_kernels_are_what_the_plan_was_promised(arch):
    """Compiled, with the blocks on a unit that its barriers count on."""
    target = make_target({"kind": "cuda", "arch": arch})
    fuse = FuseRTasks(target)
    mod = fuse(module(lstm, (1, 16), (1, 16), (1, 16)))
    with target:
        built = tvm.compile(mod, target)
    ((name, kernel),) = fuse.report.kernels.items()
    taken = resources_of(built.mod, target)[f"{name}_kernel"]
    threads = kernel.host.launches[0].block[0]
    assert not taken.spills and taken.max_threads >= threads
    limit = fuse.report.device.limits.registers_per_unit
    assert kernel.resident and (limit is None or taken.registers * threads * kernel.resident <= limit)




def test_memory_is_within_the_rule():
    """A plan keeps no more alive than the last-level cache beyond what its operators do one by one."""
    graph = rtask_graph(module(inception, (1, 8, 8, 8)), A100)
    for plan in graph.plans():
        assert plan.peak_bytes <= plan.limit_bytes
        assert plan.peak_bytes - plan.sequential_peak_bytes <= load_device("a100").levels[1].capacity_bytes


def test_an_operator_without_code_is_named_and_stays(monkeypatch):
    generated = KernelMaker._generated

    def failing(self, found, name, kernel):
        if "softmax" in name:
            return CannotFuse("no such intrinsic", where=f"operator '{name}'")
        return generated(self, found, name, kernel)

    monkeypatch.setattr(KernelMaker, "_generated", failing)
    fuse = FuseRTasks(A100)
    mod = fuse(module(attention, (8, 32)))
    ((name, reason),) = fuse.report.outside
    assert "softmax" in name and reason.startswith("none of its plans has code")
    assert fuse.report.functions
    with make_target(A100) as target:
        tvm.compile(mod, target)


@pytest.mark.nightly
def test_a_plan_too_big_for_the_device_is_cut(monkeypatch):
    """What its barriers need resident does not fit: halves are tried, and in the end the operators stay."""
    from roller_tvm.rammer import fused_kernel as code

    monkeypatch.setattr(code, "occupancy", lambda *_: (0, "shared memory"))
    fuse = FuseRTasks(A100)
    mod = fuse(module(lstm, (1, 16), (1, 16), (1, 16)))
    (region,) = fuse.report.regions
    assert any("a unit of" in why and "has room for" in why for why in region.refused)
    operators = [o for part in region.plan.parts for o, _ in part.kernels]
    assert sorted(operators) == sorted(c.name for r in rtask_graph(module(lstm, *NETS["lstm"][1:]), A100).regions
                                       for c in r.calls)  # fmt: skip
    assert not any(part.program and part.program.waits for part in region.plan.parts)
    with make_target(A100) as target:
        tvm.compile(mod, target)


def test_without_a_dataflow_block(tmp_path):
    """Calls with an effect stay where they are, between plans of what is before and after them."""
    seen = []

    @tvm.register_global_func("roller_tvm.test.look", override=True)
    def look(x):
        seen.append(x.numpy())

    x = relax.Var("x0", relax.TensorType((4, 16), F32))
    builder = relax.BlockBuilder()
    with builder.function("main", [x], pure=False):
        p, q = (builder.emit(relax.op.matmul(x, weight(16, 8))) for _ in range(2))
        builder.emit(relax.Call(relax.ExternFunc("roller_tvm.test.look"), [p], ty_args=[relax.TupleType([])]))
        s = builder.emit(relax.op.add(p, q))
        builder.emit_func_output(builder.emit(relax.op.multiply(builder.emit(relax.op.nn.softmax(s)), s)))
    mod, given = builder.get(), values(4, 16)
    (made,), _, fuse = emulate(mod, [(4, 16)], tmp_path, [[given]])
    expected = default(mod, given)
    np.testing.assert_allclose(made[0], expected[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(*seen, rtol=1e-4, atol=1e-4)
    assert fuse.report.functions


def test_report_says_what_was_done():
    fuse = FuseRTasks(A100, launch="graph")
    fuse(module(lstm, (1, 16), (1, 16), (1, 16)))
    assert "1 kernels instead of" in str(fuse.report)
    assert "launched from a graph" in fuse.report.explain()
    (picture,) = fuse.report.pictures()
    assert picture.startswith("<svg")


def test_a_module_with_plans_is_saved_and_not_fused_again():
    target = make_target(A100)
    once = FuseRTasks(target)(module(attention, (8, 32)))
    back = tvm.ir.load_json(tvm.ir.save_json(once))
    tvm.ir.assert_structural_equal(back, once)
    again = FuseRTasks(target)
    assert kernels_of(again(back)) == kernels_of(once) and not again.report.functions
    ((name, reason),) = again.report.outside
    assert "rtasks_0" in name and "scheduled" in reason


def test_what_is_no_target_of_fused_kernels_is_refused(monkeypatch):
    mod = module(attention, (8, 32))
    with pytest.raises(TargetError, match="CUDA C\\+\\+"):
        FuseRTasks({"kind": "opencl", "max_shared_memory_per_block": 32768}, "a100")(mod)
    monkeypatch.setattr(fused_func, "_CALL", "tirx.no_such_operator")
    with pytest.raises(TvmLineError, match="takes no CUDA source"):
        FuseRTasks(A100)(mod)


def test_what_others_lowered_is_planned_as_it_is():
    """Legalized, and not fused: nobody's functions are put together behind their back."""
    mod = relax.transform.LegalizeOps()(module(lstm, (1, 16), (1, 16), (1, 16)))
    graph = rtask_graph(mod, A100)
    names = [v.name_hint for v in graph.mod.get_global_vars()]
    assert "tanh" in " ".join(names) and not any(n.startswith("fused_") for n in names)


def test_a_model_of_its_own_stays_as_it_is():
    """One operator: nothing to fuse."""
    mod = module(lambda builder, x: relax.op.nn.relu(x), (4, 4))
    fuse = FuseRTasks(A100)
    assert not kernels_of(fuse(mod)) and not fuse.report.functions


@pytest.mark.parametrize("name", ["inception", "attention"])
def test_on_a_cpu_branches_share_a_parallel_region(name):
    """A CPU of four cores, the same wherever this runs; the threads that run are this machine's."""
    body, *shapes = NETS[name]
    mod, given = module(body, *shapes), [values(*shape) for shape in shapes]
    target = tvm.target.Target(LLVM)
    four = replace(device("avx2"), name="four", units=4, launch_overhead_us=0.2)
    fuse = FuseRTasks(target, four)
    for result, expected in zip(run(build(mod, target, device=four, fuse_rtasks=fuse), *given), default(mod, *given),
                                strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    report = fuse.report
    assert report.functions and report.launches < report.sequential_launches
    assert report.predicted_seconds < report.sequential_seconds


@pytest.mark.nightly
def test_the_pass_alone_schedules_a_cpu_s_functions():
    mod, x = module(inception, (1, 8, 8, 8)), values(1, 8, 8, 8)
    target = tvm.target.Target(LLVM)
    four = replace(device("avx2"), name="four", units=4, launch_overhead_us=0.2)
    fused = FuseRTasks(target, four)(mod)
    assert "side_by_side" in [v.name_hint for v in fused.get_global_vars()]
    built = tvm.compile(fused, target, relax_pipeline=lower(target))
    np.testing.assert_allclose(run(built, x)[0], default(mod, x)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.nightly
def test_only_what_is_left_is_tuned(tmp_path):
    """Without a device: what is outside of every plan is recorded, and a build with the records says the same plans."""
    mod = prepare(module(called, (1, 8, 8, 8)), A100)
    everything = {task.name for task in extract_tasks(mod)}
    _, result = tune(mod, None, make_target(A100), tmp_path / "records", fuse_rtasks=True)
    assert {t.task.name for t in result.tasks} < everything
    assert any(note.startswith("FuseRTasks: ") for note in result.notes)


def test_devices_differ():
    """The plan is of the device asked for."""
    mod = module(inception, (1, 8, 64, 64))
    small = replace(load_device("a100"), units=4)
    whole, part = (rtask_graph(mod, A100, device).plans()[0] for device in ("a100", small))
    assert whole.seconds < part.seconds


def halves_of_a_product(builder, x):
    """Elements of a tuple that is made outside of every plan."""
    parts = builder.emit(relax.op.split(builder.emit(relax.op.matmul(x, weight(16, 32))), 2, axis=1))
    each = [builder.emit(relax.TupleGetItem(parts, n)) for n in range(2)]
    return relax.Tuple([builder.emit(relax.op.matmul(part, weight(16, 8))) for part in each])


def heads_of_flat_images(builder, x):
    """Operators that read a tensor through a view."""
    flat = builder.emit(relax.op.reshape(builder.emit(relax.op.nn.softmax(x)), (1, 128)))
    return relax.Tuple([builder.emit(relax.op.matmul(flat, weight(128, 8))) for _ in range(2)])


@pytest.mark.parametrize("body, shape", [(halves_of_a_product, (4, 16)), (heads_of_flat_images, (1, 8, 4, 4))])
def test_on_a_cpu_elements_of_tuples_and_views_are_given_to_a_region(body, shape):
    mod, x, target = module(body, shape), values(*shape), tvm.target.Target(LLVM)
    four = replace(device("avx2"), name="four", units=4, launch_overhead_us=0.2)
    fuse = FuseRTasks(target, four)
    built = build(mod, target, device=four, fuse_rtasks=fuse)
    assert fuse.report.functions
    for result, expected in zip(run(built, x), default(mod, x), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_elements_of_tuples_are_given_to_a_kernel(tmp_path):
    mod, x = module(halves_of_a_product, (4, 16)), values(4, 16)
    fuse = FuseRTasks(make_target(A100), policy="horizontal", top=2)
    ((made, *_), _, _) = emulate(mod, [(4, 16)], tmp_path, [[x]], fuse)
    for result, expected in zip(made, default(mod, x), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(not find_compilers(), reason="no CUDA compiler")
def test_fused_kernels_of_bfloat16_compile():
    """What TVM writes before such a kernel is a list of macros, each taken back at once."""
    import ml_dtypes

    def body(builder, x):
        w = relax.const(values(8, 16).astype(ml_dtypes.bfloat16), "bfloat16")
        tanh = builder.emit(relax.op.tanh(builder.emit(relax.op.add(x, w))))
        return relax.Tuple([tanh, builder.emit(relax.op.multiply(x, w))])

    target = make_target(A100)
    executable = build(module(body, (8, 16), dtype="bfloat16"), target, fuse_rtasks=FuseRTasks(target, top=2))
    assert compile_cuda(executable.roller_tvm_kernels.source, "sm_80")


@pytest.mark.parametrize("given", [{"policy": "bogus"}, {"launch": "bogus"}])
def test_what_is_no_choice_is_named_at_once(given):
    with pytest.raises(UsageError, match=f"{next(iter(given))} must be one of .* \\(got 'bogus'\\)"):
        FuseRTasks(A100, **given)
