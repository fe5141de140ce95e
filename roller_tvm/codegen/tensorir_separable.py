"""Sums over two axes whose factors separate, taken one axis after the other: Winograd's transforms.

``sum(d[p, q] * f[x, p] * g[y, q])`` over p and q has 6^4 terms for 6 x 6 numbers; the sums over p, and of these the
sums over q, have 2 * 6^3, and only the constants' positions must be known: one loop of each stays a loop. TVM and LLVM
get a few tens of statements in place of a thousand, most of the time that such a kernel took to build.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from ..te.numbering import SERIAL, UNROLLED, VECTORIZED, dtype_of_node
from ..te.quotient import nodes_of
from ..tir.nodes import access_of, analyzer_of_tvm, key, structurally_equal
from .flat import in_order, kind_of, number_of

_COMPARED = {"EQ": "__eq__", "NE": "__ne__", "LT": "__lt__", "LE": "__le__", "GT": "__gt__", "GE": "__ge__"}
_COMPUTED = {"Add": "__add__", "Sub": "__sub__", "Mul": "__mul__", "FloorMod": "__mod__", "FloorDiv": "__floordiv__"}


def with_separated_sums(func: Any) -> Any:
    """Return a scheduled PrimFunc of blocks with its unrolled sums that separate taken an axis at a time.

    The vectors of the sums, of what they read and of what reads them stay. Other functions are returned as they are.
    """
    import tvm_ffi
    from tvm import tirx

    return tvm_ffi.structural_map(func, (tirx.SeqStmt, _separated), order="post")


@dataclass(frozen=True)
class _Nest:
    """A block of one store in loops of its own, its axes replaced by what they are of the loops.

    Parameters
    ----------
    loops : tuple of For
        Those of several trips.
    store : BufferStore
    block : SBlock
    """

    loops: tuple[Any, ...]
    store: Any
    block: Any

    @classmethod
    def of(cls, statement: Any) -> _Nest | None:
        """Return the nest of a statement; None if it has another form."""
        loops = []
        while kind_of(statement) == "For":
            if number_of(statement.min) != 0 or number_of(statement.extent) is None:
                return None
            loops.append(statement)
            statement = statement.body
        if kind_of(statement) != "SBlockRealize" or number_of(statement.predicate) != 1:
            return None
        block = statement.block
        if block.init is not None or block.alloc_buffers or block.match_buffers or kind_of(block.body) != "BufferStore":
            return None
        known = {key(loop.loop_var): loop.min for loop in loops if number_of(loop.extent) == 1}
        values = (_with(value, known) for value in statement.iter_values)
        axes = {key(axis.var): value for axis, value in zip(block.iter_vars, values, strict=True)}
        kept = tuple(loop for loop in loops if key(loop.loop_var) not in known)
        return cls(kept, _with(block.body, axes), block)

    @property
    def extents(self) -> list[int]:
        return [int(loop.extent) for loop in self.loops]


@dataclass(frozen=True)
class _Factor:
    """A factor of constants: its value for each position of a result's loop and of a sum's loop."""

    result: Any
    term: Any
    values: Mapping[tuple[int, int], float]

    @property
    def positions(self) -> range:
        return range(int(self.result.extent))

    def terms(self, position: int) -> Iterator[tuple[int, float]]:
        """Yield position and value of the terms of one result, but those that are 0."""
        for n in range(int(self.term.extent)):
            if self.values[position, n]:
                yield n, self.values[position, n]


@dataclass(frozen=True)
class _Sum:
    """A nest that adds products of a value and of two factors of constants."""

    nest: _Nest
    value: Any
    first: _Factor
    second: _Factor

    @property
    def lane(self) -> Any:
        return self.nest.loops[-1]

    @classmethod
    def of(cls, nest: _Nest) -> _Sum | None:
        """Return a nest as a sum that separates; None if it is none."""
        *unrolled, lane = nest.loops or (None,)
        if len(unrolled) != 4 or int(lane.kind) != VECTORIZED or any(int(loop.kind) != UNROLLED for loop in unrolled):
            return None
        store = nest.store
        own = access_of(store.value.a) if kind_of(store.value) == "Add" else None
        if own is None or key(own[0]) != key(store.buffer) or not _equal(own[1], store.indices):
            return None
        at = _variables(store.indices)
        terms = [loop for loop in unrolled if key(loop.loop_var) not in at]
        results = [loop for loop in unrolled if key(loop.loop_var) in at]
        if len(terms) != 2:
            return None
        rest: list[Any] = []
        found: list[_Factor] = []
        analyzer = _analyzer(nest.loops)
        for node in _factors(store.value.b):
            factor = analyzer.simplify(node)
            made = _factor(factor, results, terms)
            if made is None:
                rest.append(factor)
            else:
                found.append(made)
        if len(found) != 2 or not rest:
            return None
        value = rest[0]
        for other in rest[1:]:
            value = value * other
        parts = {key(part.result.loop_var) for part in found} | {key(part.term.loop_var) for part in found}
        apart = not _variables([value]) & {key(loop.loop_var) for loop in results}
        return cls(nest, value, *found) if len(parts) == 4 and apart else None

    def starts(self, before: _Nest) -> bool:
        """Return whether a nest sets all results to 0."""
        loops = [self.first.result, self.second.result, self.lane]
        loops = [loop for loop in self.nest.loops if any(loop.same_as(one) for one in loops)]
        if key(before.store.buffer) != key(self.nest.store.buffer) or before.extents != [int(n.extent) for n in loops]:
            return False
        if getattr(before.store.value, "value", None) != 0:
            return False
        same = {key(old.loop_var): new.loop_var for old, new in zip(before.loops, loops, strict=True)}
        simplified = analyzer_of_tvm().simplify
        there = [simplified(_with(index, same)) for index in before.store.indices]
        return _equal(there, [simplified(index) for index in self.nest.store.indices])

    def separated(self) -> Any:
        """The statement that computes the sums of `first` for all terms of `second`, and from these the results."""
        from tvm import ir, s_tir, tirx

        first, second, lane, store = self.first, self.second, self.lane, self.nest.store
        dtype = str(store.buffer.dtype)
        shape = [int(loop.extent) for loop in (first.result, second.term, lane)]
        sums = tirx.decl_buffer(shape, dtype, f"{store.buffer.name}_sums", scope="local")
        zero, term, result = lane.min, second.term.loop_var, first.result.loop_var

        def sum_of(factor: _Factor, position: int, value: Any) -> Any:
            total = None
            for n, weight in sorted(factor.terms(position), key=lambda term: term[1] < 0):
                one = value(n)
                if abs(weight) != 1:
                    one = one * tirx.const(abs(weight), dtype)
                start = tirx.const(0, dtype) if total is None and weight < 0 else total
                total = one if start is None else start + one if weight > 0 else start - one
            return tirx.const(0, dtype) if total is None else total

        def vector(buffer: Any, at: Sequence[Any], value: Any) -> Any:
            own = tirx.Var("lane", dtype_of_node(lane.loop_var))
            named = {key(lane.loop_var): own}
            there = [_with(index, named) for index in at]
            stored = tirx.BufferStore(buffer, _with(value, named), there)
            return tirx.For(own, zero, lane.extent, lane.kind, stored)

        def number(n: int, loop: Any) -> Any:
            return tirx.const(n, dtype_of_node(loop.loop_var))

        def partial(n: int) -> Any:
            return sum_of(first, n, lambda p: _with(self.value, {key(first.term.loop_var): number(p, first.term)}))

        def whole(n: int) -> Any:
            at = [result, None, lane.loop_var]
            return sum_of(second, n, lambda q: tirx.BufferLoad(sums, [at[0], number(q, second.term), at[2]]))

        inner = [vector(sums, [number(n, first.result), term, lane.loop_var], partial(n)) for n in first.positions]
        outer = [
            vector(store.buffer,
                   [_with(i, {key(second.result.loop_var): number(n, second.result)}) for i in store.indices], whole(n))
            for n in second.positions
        ]  # fmt: skip
        body = in_order([
            tirx.For(term, zero, second.term.extent, SERIAL, in_order(inner, tirx)),
            tirx.For(result, zero, first.result.extent, SERIAL, in_order(outer, tirx)),
        ], tirx)  # fmt: skip
        read = [access[0] for node in nodes_of(self.value) if (access := access_of(node)) is not None]
        regions = [
            [tirx.BufferRegion(buffer, [ir.Range(0, extent) for extent in buffer.shape]) for buffer in buffers]
            for buffers in (read, [store.buffer])
        ]
        block = s_tir.SBlock([], *regions, str(self.nest.block.name_hint), body, None, [sums])
        return s_tir.SBlockRealize([], tirx.const(True, "bool"), block)


def _separated(sequence: Any) -> Any:
    """Return a sequence of statements with its sums that separate, and the nests that belong to them, in loops."""
    from tvm import tirx

    nests = [_Nest.of(statement) for statement in sequence.seq]
    made: dict[int, Any] = {}
    memory: set[int] = set()
    for n in range(1, len(nests)):
        nest, before = nests[n], nests[n - 1]
        if nest is None or before is None:
            continue
        found = _Sum.of(nest)
        if found is None or not found.starts(before):
            continue
        made |= {n: found.separated(), n - 1: None}
        memory |= {key(nest.store.buffer)} | {key(access[0]) for node in nodes_of(found.value)
                                              if (access := access_of(node)) is not None}  # fmt: skip
    if not made:
        return sequence
    for n, nest in enumerate(nests):
        if nest is not None and n not in made:
            used = {key(nest.store.buffer)} | {key(access[0]) for node in nodes_of(nest.store.value)
                                               if (access := access_of(node)) is not None}  # fmt: skip
            if used & memory:
                made[n] = _in_loops(sequence.seq[n])
    parts = [made.get(n, statement) for n, statement in enumerate(sequence.seq)]
    return in_order([part for part in parts if part is not None], tirx)


def _in_loops(statement: Any) -> Any:
    """Return a nest with loops where it had unrolled ones."""
    from tvm import tirx

    if kind_of(statement) != "For":
        return statement
    kind = SERIAL if int(statement.kind) == UNROLLED else statement.kind
    body = _in_loops(statement.body)
    return tirx.For(statement.loop_var, statement.min, statement.extent, kind, body, statement.thread_binding,
                    statement.annotations)  # fmt: skip


def _factors(node: Any) -> list[Any]:
    return [*_factors(node.a), *_factors(node.b)] if kind_of(node) == "Mul" else [node]


def _analyzer(loops: Sequence[Any]) -> Any:
    """Return TVM's simplifier, which knows the trips of the loops."""
    from tvm import ir

    analyzer = analyzer_of_tvm()
    for loop in loops:
        analyzer.bind(loop.loop_var, ir.Range.from_min_extent(loop.min, loop.extent))
    return analyzer


def _factor(node: Any, results: Sequence[Any], terms: Sequence[Any]) -> _Factor | None:
    """Return a factor as a table, if it depends on one loop of the results and one of the terms alone."""
    if any(access_of(part) is not None for part in nodes_of(node)):
        return None
    used = _variables([node])
    mine = [[loop for loop in some if key(loop.loop_var) in used] for some in (results, terms)]
    if [len(some) for some in mine] != [1, 1] or len(used) != 2:
        return None
    (result,), (term,) = mine
    values = {}
    for at in product(range(int(result.extent)), range(int(term.extent))):
        value = _value(node, {key(result.loop_var): at[0], key(term.loop_var): at[1]})
        if value is None:
            return None
        values[at] = float(value)
    return _Factor(result, term, values)


def _value(node: Any, at: Mapping[int, int]) -> Any:
    """Return the value of an expression of loop variables; None if that is not known here."""
    kind = kind_of(node)
    if kind in ("IntImm", "FloatImm"):
        return node.value
    if kind == "Var":
        return at.get(key(node))
    if kind == "Select":
        condition = _value(node.condition, at)
        return None if condition is None else _value(node.true_value if condition else node.false_value, at)
    name = _COMPARED.get(kind) or _COMPUTED.get(kind)
    if name is None:
        return None
    a, b = _value(node.a, at), _value(node.b, at)
    return None if a is None or b is None else getattr(a, name)(b)


def _with(node: Any, values: Mapping[int, Any]) -> Any:
    """Return a node with variables replaced."""
    import tvm_ffi
    from tvm import tirx

    if not values:
        return node
    return tvm_ffi.structural_map(node, (tirx.Var, lambda var: values.get(key(var), var)), order="post")


def _variables(nodes: Sequence[Any]) -> set[int]:
    return {key(part) for node in nodes for part in nodes_of(node) if kind_of(part) in ("Var", "SizeVar")}


def _equal(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(structurally_equal(a, b) for a, b in zip(some, others, strict=True))
