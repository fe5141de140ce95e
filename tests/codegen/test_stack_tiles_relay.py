"""Register tiles on the stack: the same numbers, no workspace, only within the context, and in all that builds."""

import re

import pytest

pytestmark = [pytest.mark.tvm, pytest.mark.optimised]
tvm = pytest.importorskip("tvm")

from tvm import relay, te, tir  # noqa: E402

from roller_tvm.relay import StackTiles, build  # noqa: E402

from ..relay.drop_in import built_by_drop_in  # noqa: E402

WIDE = "llvm -mcpu=core-avx2"


def tiled(rows, columns, dtype="float32"):
    """A product whose sums of so many rows and columns are kept in a buffer of their own."""
    a, b = te.placeholder((rows * 3, 40), dtype, "a"), te.placeholder((40, columns), dtype, "b")
    k = te.reduce_axis((0, 40), "k")
    c = te.compute((rows * 3, columns), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c")
    schedule = te.create_schedule(c.op)
    kept = schedule.cache_write(c, "local")
    outer, _ = schedule[c].split(c.op.axis[0], rows)
    schedule[c].parallel(outer)
    schedule[kept].compute_at(schedule[c], outer)
    i, j = kept.op.axis
    schedule[kept].reorder(kept.op.reduce_axis[0], i, j)
    schedule[kept].unroll(i)
    schedule[kept].vectorize(j)
    return schedule, [a, b, c]


def text(library):
    source = (library.get_lib() if hasattr(library, "get_lib") else library).get_source("ll")
    return re.sub("0x[0-9a-f]+", "", source)  # addresses of this process


def workspaces(library):
    return text(library).count("@__TVMBackendAllocWorkspace,")


def test_only_within_its_context():
    schedule, tensors = tiled(16, 16)
    plain = text(tvm.build(schedule, tensors, WIDE))
    with StackTiles():
        inside = text(tvm.build(schedule, tensors, WIDE))
        with StackTiles(False):
            assert text(tvm.build(schedule, tensors, WIDE)) == plain
    assert text(tvm.build(schedule, tensors, WIDE)) == plain != inside


def test_build_and_the_drop_in_have_it(tmp_path):
    x = relay.var("x", shape=(8, 300))
    mod = tvm.IRModule.from_expr(relay.Function([x], relay.nn.softmax(x)))  # TVM keeps a row: 1200 bytes
    log = tmp_path / "records.json"
    log.write_text("")

    def drop_in(**options):
        return workspaces(built_by_drop_in(mod, log, **options))

    assert not drop_in() and drop_in(stack_tiles=False)
    ours = [workspaces(build(mod, None, "llvm", str(log), stack_tiles=on)) for on in (True, False)]
    assert not ours[0] and ours[1]


def test_what_is_taken_out_is_no_more_than_the_workspace():
    """Its let, the test for null and the giving back; other conditions stay."""
    from roller_tvm.codegen.rewrites import rewritten

    attrs = {"global_symbol": "f", "target": tvm.target.Target("llvm", "llvm")}
    mod = tvm.IRModule({"f": tvm.lower(*tiled(16, 16))["main"].with_attr(attrs)})
    for step in (tir.transform.MakePackedAPI(), tir.transform.LowerTVMBuiltin()):
        mod = step(mod)
    found = {"If": 0, "Allocate": 0}

    def count(node):
        for kind in found:
            found[kind] += type(node).__name__.startswith(kind)

    before = mod["f"]
    tir.stmt_functor.post_order_visit(before.body, count)
    ifs = found["If"]
    found.update({"If": 0, "Allocate": 0})
    tir.stmt_functor.post_order_visit(rewritten(before, {"stack_tiles"}).body, count)
    assert found == {"If": ifs - 2, "Allocate": 1}
