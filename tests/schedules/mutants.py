"""Wrong kernels made by rule from correct ones, and what an exact run says of each."""

import ast
import re
from functools import partial

import numpy as np

from roller_tvm.codegen.dialect import dialect_here
from roller_tvm.codegen.flat import access_of, called, is_load, kind_of, number_of, parts_of
from roller_tvm.te.numbering import dtype_of_node

from .interpret import Run

#: Rules that leave each element where it is: sets know nothing of these mutants, of which none may be proven.
OTHER_VALUES = ("a factor twice", "a term twice", "by way of", "another number compared", "constants exchanged",
                "written through a view", "another reduction", "factors exchanged")  # fmt: skip
#: Scales of random inputs, and numbers that are large beside them.
SCALES, LARGE = (1.0, 40.0), (1e3, -1e3, 1e20, -1e20)
#: An element in a witness.
ELEMENT = re.compile(r"([\w.]+)(\[[\d, -]*\])")


def shape_of(load):
    buffer, _ = access_of(load)
    return buffer.shape


def at_each_of(func, name, kinds, change):
    """Yield (name, function): one rule at each place that it applies to."""
    dialect, count = dialect_here(), [0]

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


def other_constants(func):
    """Yield (name, function): each constant of a value is another. Such a kernel is not refuted, nor proven."""
    dialect = dialect_here()

    def another(node):
        return dialect.tir.const(node.value + 1.5 if abs(node.value) < 1e30 else 9.0, "float32")

    yield from at_each_of(func, "another constant", dialect.tir.FloatImm, another)


def mutants(func):
    """Yield (name, function): each rule at each place that it applies to."""
    dialect = dialect_here()
    tir, at_each = dialect.tir, partial(at_each_of, func)

    def like(index, number):
        """A number of the type of an index."""
        return tir.const(number, dtype_of_node(index))

    def shifted(indices, by):
        return [*indices[:-1], indices[-1] + like(indices[-1], by)]

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
        *others, last = node.indices
        return tir.BufferLoad(node.source, [*others, tir.FloorMod(last + like(last, 1), like(last, extent))])

    def with_partner(node, side, another):
        """A product whose factor on a side reads `another` element."""
        factor = getattr(node, side)
        if not is_product(node) or not is_load(factor):
            return None
        indices = another(list(factor.indices), [number_of(e) for e in shape_of(factor)])
        if indices is None:
            return None
        changed = {"a": node.a, "b": node.b, side: tir.BufferLoad(factor.source, indices)}
        return tir.Mul(changed["a"], changed["b"])

    def partner(place, turned):
        """The last of its row for the first and so on (`turned`), or the next one, along a dimension from the end."""

        def another(indices, extents):
            if len(indices) < -place or (extents[place] or 0) < 2:
                return None
            index = indices[place]
            extent, one = like(index, extents[place]), like(index, 1)
            indices[place] = extent - one - index if turned else tir.FloorMod(index + one, extent)
            return indices

        return another

    def trips(node, by):
        extent = number_of(node.extent)
        if extent is None or extent + by < 1 or int(node.kind) == 4:
            return None
        return tir.For(node.loop_var, node.min, like(node.extent, extent + by), node.kind, node.body, None, {})

    def dropped(node):
        plain = kind_of(node.value) in ("FloatImm", "IntImm")
        return tir.Evaluate(tir.const(0, "int32")) if plain else None

    def barrier(node):
        return tir.Evaluate(tir.const(0, "int32")) if called(node.value) == "tvm_storage_sync" else None

    def guard(node):
        condition = node.condition
        if kind_of(condition) != "LT":
            return None
        later = tir.LT(condition.a, condition.b + like(condition.b, 1))
        return tir.IfThenElse(later, node.then_case, node.else_case)

    def limit(node):
        """A condition on places, off by one."""
        if any(is_load(part) for part in parts_of(node)) or dtype_of_node(node.b).startswith("float"):
            return None
        return type(node)(node.a, node.b + like(node.b, 1))

    def wait(node):
        if not str(node.attr_key).endswith("async_wait_inflight_count"):
            return None
        fewer = node.value + like(node.value, 1)
        return tir.AttrStmt(node.node, node.attr_key, fewer, node.body)

    def at_once(node):
        kind = number_of(node.extent)
        return None if int(node.kind) or kind is None or kind < 2 else as_kind(node, 1)

    def as_kind(node, kind):
        return tir.For(node.loop_var, node.min, node.extent, kind, node.body, None, {})

    def exchanged(node):
        inner = node.body
        if kind_of(inner) != "For" or uses(inner.extent, node.loop_var) or 4 in (int(node.kind), int(inner.kind)):
            return None
        within = tir.For(node.loop_var, node.min, node.extent, int(node.kind), inner.body, None, {})
        return tir.For(inner.loop_var, inner.min, inner.extent, int(inner.kind), within, None, {})

    def neighbours(wanted):
        """Sequences with two neighbours exchanged, at each place where `wanted` holds of the two."""
        places = []

        def seen(node):
            places.extend((len(places), n) for n in range(len(node.seq) - 1) if wanted(node.seq[n], node.seq[n + 1]))

        dialect.with_nodes(func.body, seen, tir.SeqStmt)
        for number in range(len(places)):
            count = [0]

            def one(node, number=number, count=count):
                for n in range(len(node.seq) - 1):
                    if not wanted(node.seq[n], node.seq[n + 1]):
                        continue
                    count[0] += 1
                    if count[0] == number + 1:
                        parts = list(node.seq)
                        parts[n], parts[n + 1] = parts[n + 1], parts[n]
                        return tir.SeqStmt(parts)
                return None

            yield number, func.with_body(dialect.with_nodes(func.body, one, tir.SeqStmt))

    def exchanged_factors():
        """Functions in which two products of one value have each other's second factor."""
        stores = []
        dialect.with_nodes(func.body, stores.append, tir.BufferStore)
        for at, store in enumerate(stores):
            products = []
            dialect.with_nodes(store, lambda node, to=products: to.append(node) if is_product(node) else None, tir.Mul)
            for first in range(len(products) - 1):
                others = {first: products[first + 1].b, first + 1: products[first].b}
                yield f"{at} {first}", func.with_body(with_factors(at, others))

    def with_factors(at, others):
        """The function's body with other second factors of products of its store `at`."""
        counted = [0, 0]

        def product(node):
            if not is_product(node):
                return None
            counted[1] += 1
            return tir.Mul(node.a, others[counted[1] - 1]) if counted[1] - 1 in others else None

        def store(node):
            counted[0] += 1
            return dialect.with_nodes(node, product, tir.Mul) if counted[0] - 1 == at else None

        return dialect.with_nodes(func.body, store, tir.BufferStore)

    def is_barrier(node):
        return kind_of(node) == "Evaluate" and called(node.value) == "tvm_storage_sync"

    def is_allocation(node):
        return kind_of(node) in ("AllocBuffer", "DeclBuffer")

    def otherwise(change):
        """Functions in which an allocated buffer is another one."""
        found = []
        dialect.with_nodes(func.body, lambda node: found.append(node.buffer), tir.AllocBuffer)
        for number, old in enumerate(found):
            if (new := change(old)) is None:
                continue

            def stored(node, old=old, new=new):
                return tir.BufferStore(new, node.value, list(node.indices)) if node.buffer.same_as(old) else None

            def loaded(node, old=old, new=new):
                buffer, indices = access_of(node)
                return tir.BufferLoad(new, list(indices)) if buffer.same_as(old) else None

            def allocated(node, old=old, new=new):
                return tir.AllocBuffer(new, {}) if node.buffer.same_as(old) else None

            body = dialect.with_nodes(func.body, loaded, dialect.loads)
            body = dialect.with_nodes(body, stored, tir.BufferStore)
            yield number, func.with_body(dialect.with_nodes(body, allocated, tir.AllocBuffer))

    def smaller(buffer):
        last = number_of(buffer.shape[-1]) if len(buffer.shape) else None
        if last is None or last < 2:
            return None
        shape, name = [*buffer.shape[:-1], last - 1], f"{buffer.name}_less"
        return tir.decl_buffer(shape, buffer.dtype, name, scope=scope_of(buffer))

    def elsewhere_kept(buffer):
        scope = {"shared": "local", "local": "shared"}.get(scope_of(buffer))
        return scope and tir.decl_buffer(buffer.shape, buffer.dtype, f"{buffer.name}_{scope}", scope=scope)

    def again(node):
        """A factor or a term twice: as `x * y * y` for `x * y`."""
        return type(node)(node, node.b) if is_product(node) else None

    def by_way_of(node, dtype):
        """A value by way of a lesser type."""
        if dtype_of_node(node.value) != "float32" or kind_of(node.value) == "FloatImm":
            return None
        return tir.BufferStore(node.buffer, tir.Cast("float32", tir.Cast(dtype, node.value)), list(node.indices))

    def compared(node):
        """Data compared with another number."""
        if kind_of(node.b) not in ("FloatImm", "IntImm") or not any(is_load(part) for part in parts_of(node.a)):
            return None
        return type(node)(node.a, tir.const(node.b.value + 2, dtype_of_node(node.b)))

    def left_out(node):
        return None if kind_of(node.value) in ("FloatImm", "IntImm") else tir.Evaluate(tir.const(0, "int32"))

    def truncated(node):
        """A quotient that is rounded towards 0."""
        return (tir.Div if kind_of(node) == "FloorDiv" else tir.Mod)(node.a, node.b)

    def some_threads(node):
        """A reduction over threads that the first of them does not reach."""
        if str(node.attr_key) != "reduce_scope":
            return None
        calls = [part for part in parts_of(node.body.value) if called(part) == "tvm_thread_allreduce"]
        thread = calls[0].args[-1]
        return tir.IfThenElse(tir.NE(thread, tir.const(0, dtype_of_node(thread))), node, None)

    def other_reducer(node):
        """A reduction over threads by another operation."""
        if str(node.attr_key) != "reduce_scope" or kind_of(node.node.result[0]) not in ("Add", "Max"):
            return None
        one, two = node.node.lhs, node.node.rhs
        made = tir.Max(one[0], two[0]) if kind_of(node.node.result[0]) == "Add" else one[0] + two[0]
        reducer = tir.CommReducer(one, two, [made], node.node.identity_element)
        return tir.AttrStmt(reducer, node.attr_key, node.value, node.body)

    def through_views():
        """Functions in which memory is written again, by a view, right after a constant was stored there."""

        def stored(node):
            if kind_of(node.value) != "FloatImm" or not hasattr(node.buffer, "data"):
                return None
            if any(node.buffer.same_as(parameter) for parameter in func.params):
                return None

            def other(view):
                return tir.BufferStore(view, tir.const(node.value.value + 1.5, "float32"), list(node.indices))

            return tir.SeqStmt([node, dialect.seen_as(node.buffer, "float32", other)])

        yield from at_each("written through a view", tir.BufferStore, stored)

    def exchanged_constants():
        """Functions in which constants of two statements have each other's place."""
        found = []
        dialect.with_nodes(func.body, lambda node: found.append(float(node.value)), tir.FloatImm)
        for first in range(len(found) - 1):
            second = next((n for n in range(first + 1, len(found)) if found[n] != found[first]), None)
            if second is None:
                continue
            other, count = {first: found[second], second: found[first]}, [-1]

            def exchanged(node, other=other, count=count):
                count[0] += 1
                return tir.const(other[count[0]], "float32") if count[0] in other else None

            yield f"constants exchanged {first}", func.with_body(dialect.with_nodes(func.body, exchanged, tir.FloatImm))

    yield from at_each("store shifted", tir.BufferStore, lambda n: store(n, 1))
    yield from at_each("load shifted", dialect.loads, lambda n: load(n, 1))
    yield from at_each("load elsewhere", dialect.loads, elsewhere)
    for side in ("a", "b"):
        for place, turned in ((-1, True), (-2, True), (-2, False)):
            name = f"factor {side} {'turned' if turned else 'moved'} along {place}"
            change = partial(with_partner, side=side, another=partner(place, turned))
            yield from at_each(name, tir.Mul, change)
    for number, mutant in exchanged_factors():
        yield f"factors exchanged {number}", mutant
    yield from at_each("loop shorter", tir.For, lambda n: trips(n, -1))
    yield from at_each("loop longer", tir.For, lambda n: trips(n, 1))
    yield from at_each("loop at once", tir.For, at_once)
    yield from at_each("loops exchanged", tir.For, exchanged)
    yield from at_each("initial value dropped", tir.BufferStore, dropped)
    yield from at_each("barrier dropped", tir.Evaluate, barrier)
    yield from at_each("guard off by one", tir.IfThenElse, guard)
    for kind in (tir.LT, tir.LE, tir.GT, tir.GE):
        yield from at_each("limit off by one", kind, limit)
    yield from at_each("wait for fewer", tir.AttrStmt, wait)
    for number, mutant in neighbours(lambda a, b: is_barrier(a) or is_barrier(b)):
        yield f"barrier moved {number}", mutant
    for number, mutant in neighbours(lambda a, b: not any(is_barrier(p) or is_allocation(p) for p in (a, b))):
        yield f"statements exchanged {number}", mutant
    for number, mutant in otherwise(smaller):
        yield f"buffer too small {number}", mutant
    for number, mutant in otherwise(elsewhere_kept):
        yield f"wrong scope {number}", mutant
    yield from at_each("a factor twice", tir.Mul, again)
    yield from at_each("a term twice", tir.Add, again)
    for dtype in ("float16", "int32"):
        yield from at_each(f"by way of {dtype}", tir.BufferStore, partial(by_way_of, dtype=dtype))
    for kind in (tir.LT, tir.LE, tir.GT, tir.GE, tir.EQ, tir.NE):
        yield from at_each("another number compared", kind, compared)
    yield from at_each("a store left out", tir.BufferStore, left_out)
    yield from at_each("a quotient truncated", tir.FloorDiv, truncated)
    yield from at_each("a remainder truncated", tir.FloorMod, truncated)
    yield from at_each("a reduction of some threads", tir.AttrStmt, some_threads)
    yield from at_each("another reduction", tir.AttrStmt, other_reducer)
    yield from through_views()
    yield from exchanged_constants()


def is_product(node):
    return dtype_of_node(node).startswith("float")


def uses(expression, var):
    return any(part.same_as(var) for part in parts_of(expression))


def scope_of(buffer):
    scope = buffer.scope
    return str(scope() if callable(scope) else scope)


def run(func, backwards=False, seed=0, changes=()):
    """Return the run of a function on random inputs; its last argument starts as no numbers.

    `changes` are numbers at other elements of inputs: (position among the arguments, element, number).
    """
    rng = np.random.default_rng(seed)
    shapes = [[int(e) for e in p.shape] for p in func.params]
    whole = [str(p.dtype).startswith("int") for p in func.params]  # places, of three
    values = [rng.integers(0, 3, s) if w else rng.standard_normal(s) for s, w in zip(shapes, whole, strict=True)]
    arrays = [v if w else SCALES[seed] * v for v, w in zip(values, whole, strict=True)]
    for position, element, number in changes:
        arrays[position][element] = number
    arrays[-1][...] = np.nan
    found = Run(func, arrays, backwards)
    found.arrays = arrays
    return found


def answer(func):
    """Return the last argument after a run on inputs of each scale."""
    return np.stack([run(func, seed=seed).arrays[-1] for seed in range(len(SCALES))])


def is_wrong(func, right):
    """Return whether a run, in either order of threads, has a wrong access or differs from the right answers."""
    for seed, backwards in ((0, False), (0, True), (1, False)):
        found = run(func, backwards, seed)
        if found.events or not np.allclose(found.arrays[-1], right[seed], equal_nan=False):
            return True
    return False


def is_wrong_for(func, reference, finding):
    """Return whether large numbers at the elements of inputs that a witness names give wrong answers.

    A row's maximum without one term, say, is wrong if that is the largest.
    """
    found = re.search(r"depend on ([\w. ]+)\[([\d, -]*)\]", finding.why)
    if found is None:
        return False
    names, element = [str(p.name) for p in func.params], ast.literal_eval(f"[{found[2]}]")
    changed = []
    for name in found[1].split(" and "):
        rank = len(func.params[at := names.index(name)].shape)
        changed.append((at, tuple(element[:rank])))
        element = element[rank:]
    for number in LARGE:
        changes = [(*at, number) for at in changed]
        if not np.allclose(*(run(f, changes=changes).arrays[-1] for f in (func, reference)), equal_nan=True):
            return True
    return False


def confirmed(func, reference, finding):
    """Return whether a run of the wrong function shows what the witness of a refutation names."""
    if finding.rule in ("bounds", "initialised", "races"):
        name, element = ELEMENT.search(finding.why).groups() if ELEMENT.search(finding.why) else (None, None)
        if name is None:  # 'X is added to at ...'
            name = finding.why.split()[0]
        events = {e for backwards in (False, True) for e in run(func, backwards).events if e[0] == finding.rule}
        return any(n == name and (element is None or f"[{', '.join(map(str, at))}]" == element) for _, n, at in events)
    if finding.rule == "written":
        element = ast.literal_eval(ELEMENT.search(finding.why)[2])
        return bool(np.isnan(answer(func)[0][tuple(element)]))
    if finding.rule == "values":
        return _differs(func, reference, finding.why) or is_wrong_for(func, reference, finding)
    return finding.rule in ("barriers", "memory")


def _differs(func, reference, why):
    """Return whether an element of the output depends on one of an input in only one of two functions."""
    found = ELEMENT.findall(why)
    if "depend" not in why:
        return not np.allclose(answer(func), answer(reference), equal_nan=False)
    out = tuple(ast.literal_eval(found[0][1]))
    right = answer(reference)[0][out]
    wrong = answer(func)[0][out]
    return not np.isclose(right, wrong, rtol=1e-9)
