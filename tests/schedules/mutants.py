"""Wrong kernels made by rule from correct ones, and what an exact run says of each."""

import numpy as np

from roller_tvm.codegen.dialect import dialect_here
from roller_tvm.codegen.flat import access_of, called, kind_of, number_of

from .interpret import Run, Wrong


def shape_of(load):
    buffer, _ = access_of(load)
    return buffer.shape


def mutants(func):
    """Yield (name, function): each rule at each place that it applies to."""
    dialect = dialect_here()
    tir = dialect.tir

    def at_each(name, kinds, change):
        count = [0]

        def seen(node):
            count[0] += change(node) is not None

        dialect.with_nodes(func.body, seen, kinds)
        for wanted in range(count[0]):
            number = [0]

            def one(node, wanted=wanted, number=number):
                changed = change(node)
                if changed is None:
                    return None
                number[0] += 1
                return changed if number[0] == wanted + 1 else None

            yield f"{name} {wanted}", func.with_body(dialect.with_nodes(func.body, one, kinds))

    def shifted(indices, by):
        return [*indices[:-1], indices[-1] + tir.const(by, "int32")]

    def store(node, by):
        return tir.BufferStore(node.buffer, node.value, shifted(list(node.indices), by)) if node.indices else None

    def load(node, by):
        if not len(node.indices):
            return None
        return tir.BufferLoad(node.source, shifted(list(node.indices), by))

    def elsewhere(node):
        extent = number_of(shape_of(node)[-1]) if len(node.indices) else None
        if extent is None or extent < 2:
            return None
        last = tir.FloorMod(node.indices[-1] + tir.const(1, "int32"), tir.const(extent, "int32"))
        return tir.BufferLoad(node.source, [*node.indices[:-1], last])

    def trips(node, by):
        extent = number_of(node.extent)
        if extent is None or extent + by < 1 or int(node.kind) == 4:
            return None
        return tir.For(node.loop_var, node.min, tir.const(extent + by, "int32"), node.kind, node.body, None, {})

    def dropped(node):
        plain = kind_of(node.value) in ("FloatImm", "IntImm")
        return tir.Evaluate(tir.const(0, "int32")) if plain else None

    def barrier(node):
        return tir.Evaluate(tir.const(0, "int32")) if called(node.value) == "tvm_storage_sync" else None

    def guard(node):
        condition = node.condition
        if kind_of(condition) != "LT":
            return None
        later = tir.LT(condition.a, condition.b + tir.const(1, "int32"))
        return tir.IfThenElse(later, node.then_case, node.else_case)

    def wait(node):
        if not str(node.attr_key).endswith("async_wait_inflight_count"):
            return None
        fewer = node.value + tir.const(1, "int32")
        return tir.AttrStmt(node.node, node.attr_key, fewer, node.body)

    yield from at_each("store shifted", tir.BufferStore, lambda n: store(n, 1))
    yield from at_each("load shifted", dialect.loads, lambda n: load(n, 1))
    yield from at_each("load elsewhere", dialect.loads, elsewhere)
    yield from at_each("loop shorter", tir.For, lambda n: trips(n, -1))
    yield from at_each("loop longer", tir.For, lambda n: trips(n, 1))
    yield from at_each("initial value dropped", tir.BufferStore, dropped)
    yield from at_each("barrier dropped", tir.Evaluate, barrier)
    yield from at_each("guard off by one", tir.IfThenElse, guard)
    yield from at_each("wait for fewer", tir.AttrStmt, wait)


def answer(func, backwards=False):
    """Return the last argument after an exact run on fixed random inputs; None for an access out of bounds."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([int(e) for e in p.shape]) for p in func.params]
    arrays[-1][...] = np.nan
    try:
        Run(func, arrays, backwards)
    except Wrong:
        return None
    return arrays[-1]


def is_wrong(func, right):
    """Return whether a run, in either order of threads, differs from the right answer."""
    for backwards in (False, True):
        found = answer(func, backwards)
        if found is None or not np.allclose(found, right, equal_nan=False):
            return True
    return False
