"""GPU plans of TE programs: run on PoCL beside TVM's own schedule, and made through an Ansor State as well."""

from roller_check.relay_plans import opencl_function
from roller_tvm.codegen.apply_te import TeProgram, apply_steps_te
from roller_tvm.device import load_device
from roller_tvm.planner import construct
from roller_tvm.planner.lower import lower
from roller_tvm.relay.reference import difference, make_inputs, reduction_terms
from roller_tvm.te import read_te


def expected_of(tensors, feeds):
    """What TVM's default schedule computes on the CPU."""
    import tvm
    from tvm import te

    f = tvm.build(te.create_schedule(tensors[-1].op), tensors, "llvm")
    out = tvm.nd.empty([int(e) for e in tensors[-1].shape], tensors[-1].dtype)
    f(*(tvm.nd.array(x) for x in feeds), out)
    return out.numpy()


def spread(plans, most):
    """Plans that differ as much as possible: the first of each set of recipes and choices, then the best others."""
    seen, first, rest = set(), [], []
    for plan in plans:
        kind = tuple((p.recipe, tuple(k for k, v in p.choices if v > 1)) for p in plan.programs)
        (rest if kind in seen else first).append(plan)
        seen.add(kind)
    return (first + rest)[:most]


def plans_with(tensors, recipe="", device="v100", top=60):
    """(plans that have a program of the recipe, the reading)."""
    reading = read_te(tensors)
    plans = [r.plan for r in construct(reading.expression, load_device(device), top=top).plans]
    return [p for p in plans if not recipe or any(q.recipe == recipe for q in p.programs)], reading


def check(tensors, recipe="", device="v100", most=3, ops=None):
    """Runs plans that have a program of `recipe` on PoCL (ask for the fixture), different ones first; returns them."""
    plans, reading = plans_with(tensors, recipe, device)
    assert plans, f"no plan has a program of {recipe}"
    feeds = make_inputs(tensors[:-1])
    expected = expected_of(tensors, feeds)
    chosen = spread(plans, most)
    for plan in chosen:
        schedule, args = apply_steps_te(TeProgram.of_reading(reading, tensors), lower(plan))
        (got,) = opencl_function(schedule, args).run(feeds)
        wrong = difference(got, expected, reduction_terms(ops or [tensors[-1].op]))
        assert not wrong, f"{wrong}\n{plan}"
    return chosen
