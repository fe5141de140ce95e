"""Records of Ansor and traces of MetaSchedule print as scripts; Ansor's build the same State again."""

import json

import pytest

from roller_bench.replay.databases import RECORDS, WORKLOADS
from roller_tvm.cli import main
from roller_tvm.errors import RollerError
from roller_tvm.ir.operators import parse_params
from roller_tvm.schedules.from_state import script_of_record
from roller_tvm.schedules.from_trace import Event, LoopAt, script_of_trace
from roller_tvm.schedules.script import ScheduleError, Script

from ..replay.examples import AVERAGE_POOLING, CROSS_THREAD, ON_A_CPU, matmul_record
from ..sampling import sampled

AVX512, SM80 = "llvm -mcpu=skylake-avx512", "cuda -arch=sm_80"
STAGES = {"A": 2, "B": 2, "C": (["m", "n"], ["k"])}
WORDS = ["matmul m=32 n=64 k=32", "dense m=32 n=64 k=32 bias=1 relu=1", "softmax shape=16x100",
         "conv2d_nchw n=1 c=4 h=8 w=8 f=8 kh=3 kw=3 padding=1", "reduce_sum shape=4x2000 axis=1"]  # fmt: skip


def tensors(words):
    from roller_tvm.te import te_operator

    operator, *params = words.split()
    return list(te_operator(operator, **parse_params(" ".join(params))))


def test_a_record_of_ansor_prints_as_a_script(tmp_path, capsys):
    (tmp_path / "records.json").write_text("\n".join([matmul_record(seconds=0.002), matmul_record(seconds=0.001)]))
    assert main(["schedule", str(tmp_path / "records.json")]) == 0
    told = capsys.readouterr().out
    assert told.startswith("# matmul, records.json:2: 1.00 ms\nmatmul.cache_write(local, matmul.local)")
    assert "matmul.local.split(m, [2, 8, 2, 2], [m.0, m.1, m.2, m.3, m.4])" in told
    assert "A.shared.bind(" in told
    assert Script.read(told)
    assert main(["schedule", str(tmp_path / "records.json"), "--every"]) == 0
    assert capsys.readouterr().out.count("# matmul, ") == 2


def test_records_of_other_operators_print_too(tmp_path, capsys):
    (tmp_path / "records.json").write_text("\n".join([AVERAGE_POOLING, CROSS_THREAD, ON_A_CPU]))
    assert main(["schedule", str(tmp_path / "records.json")]) == 0
    told = capsys.readouterr().out
    assert "matmul.split(m, [8], [m.0, m.1])" in told
    assert "pad.inline()" in told


@pytest.mark.parametrize(("steps", "why"), [
    ([["PR", 2, 0, "tensor_core"]], "step 0 .*pragma 'tensor_core' has no command"),
    ([["SP", 2, 0, 64, [8], 1], ["XX", 2]], r"step 1 \['XX', 2\]: no command says it"),
    ([["AN", 2, 9, 2]], "step 0 .*does not fit this operator"),
    ([["CI", 2], ["CR", 2]], "step 1 .*moved out of a loop again"),
])  # fmt: skip
def test_a_step_without_a_command_is_named(steps, why):
    with pytest.raises(ScheduleError, match=why) as error:
        script_of_record(steps, STAGES, "records.json:1")
    assert "\n" not in error.value.one_line()


def test_an_instruction_without_a_command_is_named():
    stages, blocks = {"C": (["m", "n"], ["k"])}, {"C": "C"}
    with pytest.raises(ScheduleError, match="instruction 0 Tensorize: no command says it"):
        script_of_trace([Event("Tensorize", ("C",), ("wmma",))], stages, blocks)
    with pytest.raises(ScheduleError, match="4 loops, and 3 have names"):
        script_of_trace([Event("Parallel", (LoopAt("C", 0, 4, 8),))], stages, blocks)


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("words", "target"),
    sampled([(w, t) for w in WORDS for t in (AVX512, SM80)], always=[(WORDS[0], AVX512), (WORDS[4], SM80)]),
)
def test_the_script_of_a_state_builds_that_state(words, target):
    import tvm
    from tvm import auto_scheduler
    from tvm.auto_scheduler.measure_record import dump_record_to_string

    from roller_tvm.codegen.apply_te import TeProgram, apply_steps_state
    from roller_tvm.te.read import read_te

    own = tensors(words)
    dag = auto_scheduler.ComputeDAG(own)
    key = auto_scheduler.workload_registry.register_workload_tensors(words, own)
    gpu = auto_scheduler.HardwareParams(-1, 16, 64, 49152, 65536, 1024, 8, 32) if "cuda" in target else None
    task = auto_scheduler.SearchTask(
        compute_dag=dag, workload_key=key, target=tvm.target.Target(target, host="llvm"), hardware_params=gpu
    )
    policy = auto_scheduler.SketchPolicy(task, verbose=0, params={"sample_init_min_population": 4})
    program = TeProgram.of_reading(read_te(dag))
    stages = {name: len(op.output(0).shape) for name, op in program.ops.items()} | program.own_loops()
    for state in policy.sample_initial_population()[:4]:
        result = auto_scheduler.MeasureResult([0.1], 0, "", 0.1, 0)
        line = dump_record_to_string(auto_scheduler.MeasureInput(task, state), result)
        script = script_of_record(json.loads(line)["i"][1][1], stages)
        assert Script.read(str(script)) == script
        again = apply_steps_state(dag, program, script.steps)
        assert str(dag.infer_bound_from_state(again)) == str(dag.infer_bound_from_state(state))


@pytest.fixture
def spaces():
    """The function of an operator and traces that MetaSchedule's rules make of it."""
    import tvm
    from tvm import te
    from tvm.s_tir import meta_schedule

    def traces(words, kind):
        func = te.create_prim_func(tensors(words))
        module = tvm.IRModule({"main": func})
        more = {"mcpu": "skylake-avx512", "num-cores": 2} if kind == "llvm" else {
            "arch": "sm_80", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152,
            "thread_warp_size": 32}  # fmt: skip
        context = meta_schedule.TuneContext(
            module, target=tvm.target.Target({"kind": kind} | more), num_threads=1,
            space_generator=meta_schedule.space_generator.PostOrderApply(
                sch_rules=kind, postprocs=kind, mutator_probs=kind
            ),
        )  # fmt: skip
        found = []
        for space in context.generate_design_space():
            schedule = tvm.s_tir.Schedule(module, seed=3)
            tvm.s_tir.schedule.Trace(space.trace.insts, {}).apply_to_schedule(schedule, False)
            schedule.enter_postproc()
            all(rule.apply(schedule) for rule in context.space_generator.postprocs)
            found.append(schedule.trace)
        return func, module, found

    return traces


@pytest.mark.relax
@pytest.mark.parametrize(("words", "kind"), sampled([(w, k) for w in WORDS for k in ("llvm", "cuda")], 3))
def test_traces_of_metaschedule_print_as_scripts(words, kind, spaces):
    from roller_tvm.relax.trace_script import script_of
    from roller_tvm.tir import read_prim_func

    func, module, traces = spaces(words, kind)
    for trace in traces:
        script = script_of(module, trace, read_prim_func(func))
        assert script.steps
        assert Script.read(str(script)) == script


@pytest.mark.relax
def test_a_database_prints_in_the_names_of_an_operator(tmp_path, capsys, spaces):
    from tvm.s_tir.meta_schedule.database import Workload

    from roller_tvm.relax.record_lines import record_line

    _, module, traces = spaces(WORDS[0], "llvm")
    import tvm

    schedule = tvm.s_tir.Schedule(module)
    traces[0].apply_to_schedule(schedule, False)
    target = tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2})
    line = record_line(module, schedule, target)
    (tmp_path / WORKLOADS).write_text(json.dumps(_as_json(Workload(module))) + "\n")
    (tmp_path / RECORDS).write_text(json.dumps([0, json.loads(line)]) + "\n")
    assert main(["schedule", str(tmp_path), "--of", WORDS[0]]) == 0
    told = capsys.readouterr().out
    assert told.startswith("# matmul, ") and "not measured\nmatmul.split(m, [" in told
    assert "T_matmul" not in told
    assert Script.read(told)


def _as_json(workload):
    from tvm.s_tir.meta_schedule import _ffi_api

    return [str(part) for part in _ffi_api.WorkloadAsJSON(workload)]


def test_a_record_known_by_a_hash_says_what_helps(tmp_path, capsys):
    (tmp_path / "records.json").write_text(matmul_record(key=["0" * 32]))
    assert main(["schedule", str(tmp_path / "records.json")]) == 1
    assert "--tasks-of" in capsys.readouterr().out
    assert issubclass(ScheduleError, RollerError)
