"""Schedule steps as values, and the steps of plans written by hand."""

import json

import pytest

from roller_tvm.codegen.applier import StepApplier
from roller_tvm.errors import MeasureError
from roller_tvm.ir import Axis
from roller_tvm.planner.lower import lower, render, step_from_json
from roller_tvm.roller.loops import open_parts, source_loops
from roller_tvm.roller.steps import STEPS, Split, TensorIrStep

from ..plan.examples import EXAMPLES


@pytest.mark.parametrize("name", EXAMPLES)
def test_text(golden, name):
    golden(name, render(lower(EXAMPLES[name]())) + "\n")


def test_json_keeps_every_kind_of_step():
    steps = [s for f in EXAMPLES.values() for s in lower(f())]
    again = [step_from_json(data) for data in json.loads(json.dumps([s.to_json() for s in steps]))]
    assert again == steps
    plain = {kind for kind in STEPS.values() if not issubclass(kind, TensorIrStep)}
    assert {type(s) for s in steps} | {STEPS["unroll_limit"]} >= plain - {STEPS["storage_align"]}
    assert render(again) == render(steps)


class Names(StepApplier):
    """Follows the names of stages and loops as the appliers do, without a program behind them."""

    def __init__(self, plan):
        before = {s.name: (source_loops(s.spatial), source_loops(s.reduce)) for s in plan.expression.stages}
        for split in plan.split_reductions:  # before rfactor there is one stage with the whole axis
            if f"{split.stage}.rf" not in before:
                del before[f"{split.stage}.rf2"]
                continue
            spatial, reduce = before.pop(f"{split.stage}.rf")
            reduce[reduce.index(f"{split.axis}.i")] = split.axis
            at = reduce.index(split.axis)
            reduce[at : at + 1] = split.loops or (split.axis,)
            before[split.stage] = ([n for n in spatial if n != f"{split.axis}.p"], reduce)
        super().__init__(before)
        self.ranks = {name: len(t.shape) for name, t in plan.expression.tensors.items()}
        self.steps = []

    def cache_read(self, stage, scope, readers, name):
        assert set(readers) <= set(self.loops)
        return self.ranks[stage]

    def done(self, *args):
        self.steps.append(args)

    split = fuse = reorder = annotate = bind = unroll_limit = storage_align = done
    compute_at = inline = cache_write = rfactor = done


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_loop_is_made_before_it_is_used(name):
    names = Names(EXAMPLES[name]())
    names.run(lower(EXAMPLES[name]()))
    assert names.steps


def test_a_loop_that_is_not_there_is_found_out():
    steps = [s for s in lower(EXAMPLES["relu_gpu"]()) if s.op != "fuse"]
    with pytest.raises(MeasureError, match="no loop 'i0.i1.i2.i3'"):
        Names(EXAMPLES["relu_gpu"]()).run(steps)


def test_an_unknown_step_is_refused():
    with pytest.raises(ValueError, match="unknown schedule step 'prefetch' .known: split, fuse"):
        step_from_json(["prefetch", "C", "i"])


def test_a_split_needs_a_name_for_each_loop():
    with pytest.raises(ValueError, match="2 lengths need 3 names"):
        Split("C", "i", (4, 8), ("a", "b"))
    with pytest.raises(ValueError, match="0 lengths need 1 names"):
        Split("C", "i", (), ("a",))


def test_parts_and_fused_axes_are_opened():
    parts = [Axis("x.o", 3, part_of=("x", 4)), Axis("x.i", 4, part_of=("x", 1))]
    fused = Axis("n*c", 6, fused_of=(("n", 2), ("c", 3)))
    steps, loops = open_parts("S", [fused, *parts, Axis("w", 5)])
    assert render(steps).splitlines() == ["fuse(S, [n, c], n*c)", "split(S, x, [4], [x.o, x.i])"]
    assert loops == ["n*c", "x.o", "x.i", "w"]
    assert source_loops([fused, *parts, Axis("w", 5)]) == ["n", "c", "x", "w"]
