"""Small workloads that the tests of this folder share."""

import numpy as np
from tvm import te

from roller_tvm import auto_scheduler

TARGET = "llvm -num-cores 2"
#: A runner that does not take long over it.
QUICK = {"number": 1, "repeat": 1, "min_repeat_ms": 1}
#: Seconds until a trial is given up: a busy machine must not fail a test.
PATIENT = 120


@auto_scheduler.register_workload
def scaled_product(n, m, k):
    """Product of two matrices plus a third, the second one's layout free."""
    a, b, c = (te.placeholder(s, name=name) for s, name in (((n, k), "A"), ((k, m), "B"), ((n, m), "C")))
    r = te.reduce_axis((0, k), name="r")
    product = te.compute(
        (n, m), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="product",
        attrs={"layout_free_placeholders": [b]})  # fmt: skip
    return [a, b, c, te.compute((n, m), lambda i, j: product[i, j] + c[i, j], name="out")]


@auto_scheduler.register_workload
def looked_up(n, m):
    """A product whose rows are looked up by the length of each: nothing that can be planned."""
    lengths = te.placeholder((n,), dtype="int32", name="lengths")
    a = te.placeholder((n, m), name="A")

    def row(i):
        r = te.reduce_axis((0, lengths[i]), name="r")
        return te.sum(a[i, r], axis=r)

    return [lengths, a, te.compute((n,), row, name="sums")]


def product_task(module=auto_scheduler, n=64, target=TARGET, **more):
    return module.SearchTask(func=scaled_product, args=(n, n, n), target=target, **more)


def check_product(schedule, args, n=64):
    """Build and run, and compare with numpy."""
    import tvm

    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal((n, n)).astype("float32") for _ in range(3))
    out = tvm.nd.empty((n, n))
    tvm.build(schedule, args, TARGET)(*(tvm.nd.array(x) for x in (a, b, c)), out)
    np.testing.assert_allclose(out.numpy(), a @ b + c, rtol=1e-4, atol=1e-4)
