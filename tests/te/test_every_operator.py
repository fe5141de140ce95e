"""Every operator: read, planned for a CPU and a GPU, its State applied, its numbers those of TVM's default schedule."""

from functools import cache

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import te  # noqa: E402

from roller_tvm.codegen.apply_te import TeProgram, apply_steps_state, keep_layout  # noqa: E402
from roller_tvm.errors import UnsupportedOperator  # noqa: E402
from roller_tvm.planner import construct  # noqa: E402
from roller_tvm.planner.lower import lower  # noqa: E402
from roller_tvm.relay import reference  # noqa: E402
from roller_tvm.te import read_te  # noqa: E402
from roller_tvm.tuning import numerics  # noqa: E402

from ..lower.kernels import poison, varied  # noqa: E402
from ..plan.devices import device  # noqa: E402
from ..sampling import in_sample, sampled  # noqa: E402
from .every_operator import COMPARED, FAMILIES, NOT_ON_A_GPU, POSITIVE  # noqa: E402

CPU, GPU, PLANS = "avx512", "a100", 2
TARGET = "llvm -mcpu=core-avx2"
CASES = [(family, name) for family, cases in FAMILIES.items() for name in cases if name not in COMPARED]
# A 16th of them at every change, all in make nightly.
SAMPLE = in_sample(CASES, 16)


@cache
def dag_of(family, name):
    return tvm.auto_scheduler.ComputeDAG(FAMILIES[family][name]())


def schedules(family, name, on):
    """Schedules of the best plans of different kinds, made through States; with the plans."""
    dag = dag_of(family, name)
    reading = read_te(dag, "op")
    program = TeProgram.of_reading(reading, dag.tensors)
    for plan in varied(construct(reading.expression, device(on), top=10).plans, PLANS):
        steps = keep_layout(dict(program.ops), lower(plan))
        yield plan, *dag.apply_steps_from_state(apply_steps_state(dag, program, steps))


@cache
def built(family, every):
    """The kernels of a family: operator -> TVM's own and ours, or why there are none; in one module, for speed."""
    found = {name: kernels(family, name) for f, name in (CASES if every else SAMPLE) if f == family}
    made = {name: k for name, k in found.items() if isinstance(k, list)}
    if family == "uneven":  # lowered functions are lowered again in a module, in which TVM stumbles over these loops
        return found | {name: [tvm.build(*kernel, TARGET) for kernel in k] for name, k in made.items()}
    functions, names = {}, {}
    for name, schedules_of_it in made.items():
        names[name] = [f"k{len(functions) + n}" for n in range(len(schedules_of_it))]
        for own, (schedule, args) in zip(names[name], schedules_of_it, strict=True):
            functions |= {v.name_hint: f for v, f in tvm.lower(schedule, args, name=own).functions.items()}
    module = tvm.build(tvm.IRModule(functions), target=TARGET)
    return found | {name: [module[n] for n in own] for name, own in names.items()}


def kernels(family, name):
    """Schedules and arguments of one operator, the reference's first; or the error."""
    tensors = list(dag_of(family, name).tensors)
    outputs = [t for t in tensors if not isinstance(t.op, te.PlaceholderOp)]
    try:
        ours = [(schedule, list(args)) for _, schedule, args in schedules(family, name, CPU)]
    except Exception as error:  # a refusal is told by the test of this operator
        return error
    return [(reference.reference_schedule(outputs), tensors), *ours]


def run(function, tensors, inputs):
    outputs = [tvm.nd.array(poison(t)) for t in tensors if not isinstance(t.op, te.PlaceholderOp)]
    given, made = iter(inputs), iter(outputs)
    placeholder = [isinstance(t.op, te.PlaceholderOp) for t in tensors]
    function(*(tvm.nd.array(next(given)) if p else next(made) for p in placeholder))
    return [o.numpy() for o in outputs]



@pytest.mark.parametrize(("family", "name"), sampled(CASES, always=SAMPLE))
def test_on_a_cpu_it_computes_what_it_should(request, family, name):
    found = built(family, request.config.getoption("--nightly"))[name]
    if isinstance(found, Exception):
        raise found
    default, *ours = found
    assert ours
    tensors = list(dag_of(family, name).tensors)
    placeholders = [t for t in tensors if isinstance(t.op, te.PlaceholderOp)]
    kinds = (True,) if name in POSITIVE else (False, True)
    inputs, expected = numerics.reference_on(placeholders, lambda given: run(default, tensors, given), kinds)
    assert numerics.numbers(expected) > 0.5
    terms = reference.reduction_terms(dag_of(family, name).ops)
    for rank, function in enumerate(ours):
        for got, wanted in zip(run(function, tensors, inputs), expected, strict=True):
            assert not reference.difference(got, wanted, terms), f"plan {rank}"


@pytest.mark.parametrize(("family", "name"), sampled(CASES, always=SAMPLE))
def test_for_a_gpu_it_is_planned_and_its_kernels_are_well_formed(family, name):
    if name in NOT_ON_A_GPU:
        with pytest.raises(UnsupportedOperator, match=NOT_ON_A_GPU[name]):
            next(schedules(family, name, GPU))
        return
    limits = device(GPU).limits
    with tvm.target.Target("cuda -arch=sm_80"):
        for plan, schedule, args in schedules(family, name, GPU):
            module = tvm.lower(schedule, list(args))
            (function,) = module.functions.values()
            bounds = {"max_threads_per_block": limits.max_threads_per_block,
                      "max_shared_memory_per_block": limits.shared_per_block_bytes}  # fmt: skip
            assert tvm.tir.analysis.verify_gpu_code(function, bounds), plan
            assert tvm.tir.analysis.verify_memory(function.with_attr("target", tvm.target.Target("cuda"))), plan
