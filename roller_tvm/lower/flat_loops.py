"""Loops of either TVM line's flattened functions, with what their innermost bodies read: kinds and fields are shared.

Of TVM nothing is used that only one line has.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..device.cpu_data import estimate
from ..te.numbering import dtype_of_node
from .prefetch import Around, next_panel

_SERIAL, _PARALLEL = 0, 1
_BITS_OF_A_BYTE = 8
#: Of LLVM's prefetch: for reading, kept in the second level of cache, data.
_READ, _SECOND_LEVEL, _DATA = 0, 2, 1


@dataclass
class Sum:
    """An index as a sum: a number, and multiples of variables and of what is no sum (with no variable of a loop)."""

    number: int = 0
    terms: dict[int, tuple[Any, int]] = field(default_factory=dict)

    def plus(self, other: Sum, times: int = 1) -> Sum:
        """This one and a multiple of another."""
        made = Sum(self.number + times * other.number, dict(self.terms))
        for at, (atom, count) in other.terms.items():
            made.terms[at] = atom, made.terms.get(at, (atom, 0))[1] + times * count
        return made

    def of(self, atom: Any) -> int:
        """How often a variable is in it."""
        return self.terms.get(hash(atom), (atom, 0))[1]


@dataclass(frozen=True)
class Reads:
    """Neighbouring vectors of one tensor that the body of an innermost loop reads.

    Parameters
    ----------
    buffer : buffer
    start : Sum
        Index of the first element.
    width : int
        Elements.
    loops : tuple of For
        Around it, outermost first.
    """

    buffer: Any
    start: Sum
    width: int
    loops: tuple[Any, ...]


def vector_reads(body: Any) -> Iterator[Reads]:
    """What the innermost loops of a flattened function read in whole vectors, a tensor at a time.

    Parameters
    ----------
    body : tvm.tir.Stmt or tvm.tirx.Stmt
    """
    named: dict[int, Any] = {}
    for node in _statements(body):
        if _kind(node) in ("LetStmt", "Bind"):
            named[hash(node.var)] = node.value
    for loops, innermost in _nests(body, ()):
        variables = {hash(loop.loop_var) for loop in loops}
        found: dict[int, tuple[Any, list[tuple[Sum, int]]]] = {}
        usable = True
        for load in _loads(innermost):
            buffer, indices = _access(load)
            if len(indices) != 1 or _kind(indices[0]) != "Ramp" or _number(indices[0].stride) != 1:
                continue
            start, lanes = sum_of(indices[0].base, named, variables), _number(indices[0].lanes)
            if start is None or lanes is None:
                usable = False
                continue
            found.setdefault(hash(buffer), (buffer, []))[1].append((start, lanes))
        if not usable:  # an index that is no sum: what moves with the loops is not known
            continue
        for buffer, parts in found.values():
            first = min(parts, key=lambda part: part[0].number)[0]
            least = [start.plus(first, -1) for start, _ in parts]
            if any(count for other in least for _, count in other.terms.values()):
                continue  # they lie apart in a way that depends on the loops
            ends = sorted({(o.number, o.number + lanes) for o, (_, lanes) in zip(least, parts, strict=True)})
            if all(ends[n][1] == ends[n + 1][0] for n in range(len(ends) - 1)):
                yield Reads(buffer, first, ends[-1][1], loops)


def asked_ahead(func: Any, left_out: Collection[int], tir: Any, intrinsic: Any) -> dict[int, list[Any]]:
    """Statements that ask for panels ahead of time, for the innermost loops of a flattened function.

    Parameters
    ----------
    func : tvm.tir.PrimFunc or tvm.tirx.PrimFunc
    left_out : collection of int
        Buffers (by hash) that are not asked for: those that the function writes.
    tir : module
        ``tvm.tir`` or ``tvm.tirx``.
    intrinsic : function of (address, int, int, int)
        A call of LLVM's prefetch.

    Returns
    -------
    dict
        Loop variable (by hash) -> statements that belong at the beginning of its body.
    """
    found: dict[int, list[Any]] = {}
    threads, line_bytes = _threads(func), int(estimate("line"))
    for reads in vector_reads(func.body):
        loops = [loop for loop in reads.loops if _number(loop.extent) != 1]
        if hash(reads.buffer) in left_out or any(_number(loop.extent) is None for loop in loops):
            continue
        around = [
            Around(int(loop.extent), reads.start.of(loop.loop_var), int(loop.kind) == _PARALLEL) for loop in loops
        ]
        line = line_bytes // _element_bytes(reads.buffer)
        ahead = next_panel(around, reads.width, line, threads)
        if ahead is None:
            continue
        moved = dict(reads.start.terms)
        for loop, stride in zip(loops, ahead.strides, strict=True):
            moved[hash(loop.loop_var)] = loop.loop_var, stride
        index = Sum(reads.start.number + ahead.shift, moved)
        for n in range(ahead.lines):
            address = tir.address_of(tir.BufferLoad(reads.buffer, [_expression(index.plus(Sum(n * line)), tir)]))
            call = intrinsic(address, *(tir.const(flag, "int32") for flag in (_READ, _SECOND_LEVEL, _DATA)))
            found.setdefault(hash(reads.loops[-1].loop_var), []).append(tir.Evaluate(call))
    return found


def asking(loop: Any, asked: Mapping[int, list[Any]], tir: Any) -> Any | None:
    """The loop with what `asked_ahead` found for it; None where that is nothing."""
    asks = asked.get(hash(loop.loop_var))
    if asks is None:
        return None
    body = tir.SeqStmt([*asks, loop.body])
    return tir.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations)


def _element_bytes(buffer: Any) -> int:
    import tvm

    return max(1, tvm.DataType(str(buffer.dtype)).bits // _BITS_OF_A_BYTE)


def _threads(func: Any) -> int:
    """Threads that share out a function's parallel loops: as its target says, or as many as there are CPUs."""
    target = (func.attrs or {}).get("target")
    return int((target.attrs.get("num-cores") if target is not None else 0) or os.cpu_count() or 1)


def _expression(index: Sum, tir: Any) -> Any:
    """An index as TVM has it."""
    made = None
    for atom, count in index.terms.values():
        if count:
            term = atom * tir.const(count, dtype_of_node(atom))
            made = term if made is None else made + term
    return tir.const(index.number, "int32") if made is None else made + tir.const(index.number, dtype_of_node(made))


def sum_of(index: Any, named: Mapping[int, Any], variables: set[int]) -> Sum | None:
    """An index as a sum; None where a variable of a loop stands in something else, or a name does."""
    kind = _kind(index)
    if (number := _number(index)) is not None:
        return Sum(number)
    if kind in ("Add", "Sub"):
        a, b = sum_of(index.a, named, variables), sum_of(index.b, named, variables)
        return None if a is None or b is None else a.plus(b, 1 if kind == "Add" else -1)
    if kind == "Mul":
        a, b = sum_of(index.a, named, variables), sum_of(index.b, named, variables)
        if a is None or b is None:
            return None
        if not any(count for _, count in b.terms.values()):
            return Sum().plus(a, b.number)
        return Sum().plus(b, a.number) if not any(count for _, count in a.terms.values()) else None
    if kind == "Cast":
        return sum_of(index.value, named, variables)
    if hash(index) in named:
        return sum_of(named[hash(index)], named, variables)
    inside = {hash(node) for node in _parts(index)}
    if kind not in ("Var", "SizeVar") and inside & (variables | set(named)):
        return None
    return Sum(0, {hash(index): (index, 1)})


def _nests(statement: Any, loops: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Innermost serial loops, and those around them."""
    if _kind(statement) == "For":
        around = (*loops, statement)
        inside = list(_nests(statement.body, around))
        if not inside and int(statement.kind) == _SERIAL:
            yield around, statement.body
        yield from inside
        return
    for part in _children(statement):
        yield from _nests(part, loops)


def _statements(statement: Any) -> Iterator[Any]:
    yield statement
    for part in _children(statement):
        yield from _statements(part)


def _children(statement: Any) -> list[Any]:
    kind = _kind(statement)
    if kind == "SeqStmt":
        return list(statement.seq)
    if kind == "IfThenElse":
        return [s for s in (statement.then_case, statement.else_case) if s is not None]
    body = getattr(statement, "body", None)
    return [] if body is None else [body]


def _loads(statement: Any) -> Iterator[Any]:
    for node in _statements(statement):
        for name in ("value", "condition"):
            if (value := getattr(node, name, None)) is not None:
                yield from (part for part in _parts(value) if _kind(part) in ("BufferLoad", "TensorLoad"))


def _access(load: Any) -> tuple[Any, list[Any]]:
    return (load.buffer if _kind(load) == "BufferLoad" else load.source), list(load.indices)


_FIELDS = ("a", "b", "value", "condition", "true_value", "false_value", "base", "stride")


def _parts(expression: Any) -> Iterator[Any]:
    """An expression and all in it."""
    yield expression
    kind = _kind(expression)
    if kind in ("BufferLoad", "TensorLoad"):
        inside = list(expression.indices)
    elif hasattr(expression, "args") and hasattr(expression, "op"):
        inside = list(expression.args)
    elif kind in ("IntImm", "FloatImm", "StringImm"):
        return
    else:
        inside = [p for name in _FIELDS if not isinstance(p := getattr(expression, name, None), (int, type(None)))]
        inside += list(getattr(expression, "vectors", ()))
    for part in inside:
        yield from _parts(part)


def _kind(node: Any) -> str:
    return type(node).__name__


def _number(node: Any) -> int | None:
    if isinstance(node, int):
        return node
    return int(node.value) if _kind(node) == "IntImm" else None
