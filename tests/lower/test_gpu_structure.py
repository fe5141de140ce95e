"""What the lowered kernels of GPU plans look like: as many, as large and as plain as planned."""

from math import prod

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("tvm.auto_scheduler")
pytestmark = pytest.mark.tvm

from roller_tvm.codegen.apply_te import TeProgram, apply_steps_te  # noqa: E402
from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.ir import dtype_bytes  # noqa: E402
from roller_tvm.planner import construct  # noqa: E402
from roller_tvm.planner.lower import lower  # noqa: E402
from roller_tvm.te import read_te, te_operator  # noqa: E402

from ..sampling import sampled  # noqa: E402

OPERATORS = {
    "matmul": ("matmul", dict(m=1000, n=512, k=1024)),
    "matmul nt": ("matmul", dict(m=512, n=768, k=256, layout="NT", bias=True, relu=True)),
    "matmul split": ("matmul", dict(m=16, n=256, k=4096)),
    "conv": ("conv2d_nchw", dict(n=8, c=64, h=28, w=28, f=64, kh=3, kw=3, stride=1, padding=1, bias=True, relu=True)),
    "conv prime": ("conv2d_nchw", dict(n=16, c=42, h=83, w=83, f=42, kh=1, kw=1, stride=1, padding=0)),
    "matmul prime": ("matmul", dict(m=1021, n=768, k=768)),
    "conv split": ("conv2d_nchw", dict(n=1, c=512, h=7, w=7, f=512, kh=3, kw=3, stride=1, padding=1)),
    "depthwise": ("depthwise_conv2d_nchw", dict(n=16, c=84, h=42, w=42, k=5, stride=1, padding=2)),
    "max pool": ("max_pool2d", dict(n=8, c=64, h=56, w=56, k=3, stride=2, padding=1)),
    "relu": ("relu", dict(shape=(8, 84, 83, 83))),
    "reduce": ("reduce_sum", dict(shape=(512, 4096), axis=(1,))),
    "softmax": ("softmax", dict(shape=(64, 4096))),
}


class Kernel:
    """Extents, buffers and guards of one kernel of a lowered function."""

    def __init__(self, body):
        self.extents, self.shared, self.vectors = {}, {}, {}
        self.guarded_sums = 0
        tvm.tir.stmt_functor.post_order_visit(body, self._visit)

    def _visit(self, node):
        if isinstance(node, tvm.tir.AttrStmt) and node.attr_key == "thread_extent":
            self.extents[node.node.thread_tag] = int(node.value)
        elif isinstance(node, tvm.tir.Allocate):
            if node.buffer_var.type_annotation.storage_scope == "shared":
                self.shared[node.buffer_var.name] = prod(int(e) for e in node.extents) * dtype_bytes(node.dtype)
        elif isinstance(node, tvm.tir.BufferStore) and isinstance(node.indices[-1], tvm.tir.Ramp):
            name = node.buffer.name
            self.vectors[name] = max(self.vectors.get(name, 1), int(node.indices[-1].lanes))
        elif isinstance(node, tvm.tir.IfThenElse):
            found = []
            tvm.tir.stmt_functor.post_order_visit(
                node.then_case,
                lambda n: found.append(n) if isinstance(n, tvm.tir.BufferStore) and scope(n) == "local" else None,
            )
            self.guarded_sums += len(found)

    @property
    def threads(self):
        return prod(e for tag, e in self.extents.items() if tag.startswith("threadIdx"))

    @property
    def blocks(self):
        return prod(e for tag, e in self.extents.items() if tag.startswith("blockIdx"))


def overhangs(program, expression):
    axes = program.tiles[0].extents
    stage = expression.stage(program.anchor) if program.anchor in expression.tensors else None
    return stage is not None and any(stage.extents[a] % e for a, e in axes)


def scope(store):
    return store.buffer.data.type_annotation.storage_scope


def kernels(lowered):
    (function,) = lowered.functions.values()
    found = []

    def walk(stmt):
        if isinstance(stmt, tvm.tir.SeqStmt):
            for part in stmt.seq:
                walk(part)
        elif isinstance(stmt, tvm.tir.AttrStmt) and stmt.attr_key == "thread_extent":
            found.append(Kernel(stmt))
        else:
            walk(stmt.body)

    walk(function.body)
    return found


@pytest.mark.parametrize(
    ("name", "device"), sampled([(name, device) for name in OPERATORS for device in ("v100", "h200")], 5)
)
def test_kernels_are_as_planned(name, device):
    operator, params = OPERATORS[name]
    tensors = te_operator(operator, **params)
    reading = read_te(tensors)
    for ranked in construct(reading.expression, load_device(device), top=10).plans[::6]:
        schedule, args = apply_steps_te(TeProgram.of_reading(reading, tensors), lower(ranked.plan))
        found = kernels(tvm.lower(schedule, args))
        assert len(found) == len(ranked.plan.programs)
        for kernel, program, estimate in zip(found, ranked.plan.programs, ranked.estimate.programs, strict=True):
            assert (kernel.blocks, kernel.threads) == (estimate.blocks, estimate.threads), program
            if program.recipe != "gpu.tiled":
                continue
            assert sum(kernel.shared.values()) == estimate.shared_bytes, program
            assert len(kernel.shared) == len(program.staged)
            assert kernel.guarded_sums == 0 or overhangs(program, reading.expression), program
            for tensor, width in program.choices_of("vector").items():
                assert kernel.vectors.get(f"{tensor}.shared", 1) == width, (tensor, program, kernel.vectors)
            if max(kernel.vectors.values(), default=1) > 1:
                assert all(size % 16 == 0 for size in kernel.shared.values()), "a vector would start unaligned"


@pytest.mark.parametrize("name", OPERATORS)
def test_an_ansor_state_has_the_planned_kernels(name):
    """The best plan, as a record file can hold it."""
    operator, params = OPERATORS[name]
    tensors = te_operator(operator, **params)
    reading = read_te(tensors)
    best = construct(reading.expression, load_device("h200"), top=1).best
    found = kernels(tvm.lower(*apply_steps_te(TeProgram.of_reading(reading, tensors), lower(best.plan))))
    told = best.estimate.programs
    assert [(k.blocks, k.threads) for k in found] == [(e.blocks, e.threads) for e in told]
    for kernel, program, estimate in zip(found, best.plan.programs, told, strict=True):
        assert program.recipe != "gpu.tiled" or sum(kernel.shared.values()) == estimate.shared_bytes
