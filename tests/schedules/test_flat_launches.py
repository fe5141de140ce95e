"""Relay line: blocks and threads that go along an output together are one number; wrong kernels are not proven so."""

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("islpy")
pytestmark = pytest.mark.tvm

from tvm import te, tir  # noqa: E402

from roller_tvm.relay.proving import loops_of  # noqa: E402
from roller_tvm.schedules.proofs import prove_lowered  # noqa: E402
from roller_tvm.schedules.proofs.read import read_kernel  # noqa: E402

from .mutants import at_each_of  # noqa: E402

ROWS, COLUMNS, PARTS = 6, 14, 3


def lowered(value=lambda x, b, i, j: x[0, i, j] * b[i], threads=12):
    """Return a function with one number for blocks and threads, and the same before its schedule."""
    x, b = te.placeholder((PARTS, ROWS, COLUMNS), name="x"), te.placeholder((ROWS,), name="b")
    k = te.reduce_axis((0, PARTS), name="k")
    parts = te.compute((ROWS, COLUMNS), lambda i, j: te.sum(x[k, i, j], axis=k), name="parts")
    out = te.compute((ROWS, COLUMNS), lambda i, j: parts[i, j] + value(x, b, i, j), name="out")
    args = [x, b, out]
    schedule = te.create_schedule(out.op)
    block, thread = schedule[out].split(schedule[out].fuse(*schedule[out].op.axis), factor=threads)
    schedule[out].bind(block, te.thread_axis("blockIdx.x"))
    schedule[out].bind(thread, te.thread_axis("threadIdx.x"))
    schedule[parts].compute_at(schedule[out], thread)
    schedule[parts].set_scope("local")
    return loops_of(schedule, args), loops_of(te.create_schedule(out.op), args)


@pytest.mark.parametrize("threads", [12, 32])  # 84 elements: 7 blocks, or 3 of which one has fewer
def test_blocks_and_threads_are_one_number(threads):
    func, reference = lowered(threads=threads)
    assert prove_lowered(func, reference, flat=True).answer == "proven"
    kernel = read_kernel(func, flat=True)
    assert kernel.threads == threads and all(len(s.folds) == 0 for s in kernel.statements)
    assert any(dim.name.startswith("blockIdx.x * ") for s in kernel.statements for dim in s.dims)


@pytest.mark.parametrize("wrong", [
    lambda x, b, i, j: x[0, i, j] * b[(i + 1) % ROWS], lambda x, b, i, j: x[0, i, (j + 1) % COLUMNS] * b[i],
    lambda x, b, i, j: x[0, ROWS - 1 - i, j] * b[i], lambda x, b, i, j: x[1, i, j] * b[i],
    lambda x, b, i, j: x[0, i, j] * b[(i * COLUMNS + j) // (COLUMNS + 1)],
])  # fmt: skip
@pytest.mark.parametrize("threads", [12, 32])
def test_other_elements_are_refuted(wrong, threads):
    _, reference = lowered()
    assert prove_lowered(lowered(wrong, threads)[0], reference, flat=True).answer == "refuted"


@pytest.mark.parametrize("threads", [12, 32])
def test_mutants_are_refuted(threads):
    func, reference = lowered(threads=threads)

    def shifted(node):
        return tir.BufferStore(node.buffer, node.value, [node.indices[0] + 1])

    def moved(node):
        outside = len(node.buffer.shape) == 1 and node.buffer.name.startswith(("x", "b"))
        return tir.BufferLoad(node.buffer, [node.indices[0] + 1]) if outside else None

    def shorter(node):
        return tir.For(node.loop_var, node.min, node.extent - 1, node.kind, node.body)

    def fewer(node):
        if str(node.attr_key) != "thread_extent" or "blockIdx" not in str(node.node.thread_tag):
            return None
        return tir.AttrStmt(node.node, node.attr_key, node.value - 1, node.body)

    rules = {"BufferStore": shifted, "BufferLoad": moved, "For": shorter, "AttrStmt": fewer}
    made = [m for kind, change in rules.items() for m in at_each_of(func, kind, [f"tir.{kind}"], change)]
    assert len(made) >= 7
    assert [name for name, m in made if prove_lowered(m, reference, flat=True).answer != "refuted"] == []
