"""What TVM infers for the stages computed inside others is the plan's tile, and nothing more."""

from math import prod

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from roller_tvm.codegen.apply_te import TeProgram, apply_steps_te  # noqa: E402
from roller_tvm.planner.lower import lower  # noqa: E402
from roller_tvm.roller.rtile import RTile  # noqa: E402

from .kernels import plans_of, reading_of  # noqa: E402
from .test_cpu import PROGRAMS  # noqa: E402


def allocated(stmt):
    """Elements of every buffer that the kernel allocates."""
    sizes = []

    def visit(node):
        if isinstance(node, tvm.tir.Allocate):
            sizes.append(prod(int(e) for e in node.extents))

    tvm.tir.stmt_functor.post_order_visit(stmt, visit)
    return sizes


@pytest.mark.parametrize("name", [
    "max pool", "pool wide", "global pool", "softmax", "sum of columns", "sum of images", "mean of an image",
    "sum of leading and trailing", "conv nchw grouped epilogue", "conv nchw epilogue", "conv nchwc", "batch_matmul",
    "matmul of long rows",
])  # fmt: skip
def test_buffers_are_tiles(name):
    tensors = PROGRAMS[name]()
    reading = reading_of(tensors)
    seen = 0
    for plan in plans_of(tensors, most=6):
        schedule, args = apply_steps_te(TeProgram.of_reading(reading, tensors), lower(plan))
        sizes = allocated(tvm.lower(schedule, args)["main"].body)
        for program in plan.programs:
            stage = plan.expression.stage(program.anchor)
            if program.recipe == "cpu.direct":
                if program.output != program.anchor and program.choice("vector") > 1:
                    assert program.choice("vector") in sizes, f"{program}: {sizes}"
                    seen += 1
                continue
            seen += 1
            tile, chunk = program.tile("register"), program.tile("l2")
            assert prod(tile[a.name] for a in stage.spatial) in sizes, f"{program}: {sizes}"
            if program.recipe == "cpu.lanes":  # what merges the lanes of the tile, where the output does not hold it
                merges = [plan.expression.stage(name) for name in program.staged if name != program.output]
                assert {prod(tile.shape.get(a.name, a.extent) for a in m.spatial) for m in merges} <= {*sizes}
                continue
            for staged in program.staged:  # what the anchor reads, or (lanes of cpu.rows) what it computes
                own = tuple(chunk[a.name] for a in stage.spatial)
                panel = RTile("l2", {**chunk.shape, **{a.name: tile[a.name] for a in stage.spatial}})
                copied = panel if program.recipe == "cpu.tiled" else chunk
                expected = own if staged == program.anchor else copied.storage(staged, stage, plan.expression)
                assert prod(expected) in sizes, f"{program}: {sizes}"
    assert seen
