"""Loops, reads and conditions of flattened functions, for either TVM line: both share kinds and fields of nodes.

Uses nothing of TVM that only one line has.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..te.numbering import PARTS, SERIAL, dtype_of_node

#: Statements that bind a name, of either line.
LETS = ("LetStmt", "Bind")
#: Call that allocates memory for which the stack has no room (TVM 0.17).
WORKSPACE = "TVMBackendAllocWorkspace"
#: Name of the call that computes only one of two arguments.
CHOICE = "if_then_else"
#: Calls whose result depends on their arguments alone.
_OF_NUMBERS = ("shift_right", "shift_left", "bitwise_and", "bitwise_or", "bitwise_xor")
#: Prefix of functions that `vector_functions.py` writes, before they have a number of lanes.
OURS = "roller_"


@dataclass
class Sum:
    """An index as a sum: a number, plus multiples of variables and of other expressions without loop variables."""

    number: int = 0
    terms: dict[int, tuple[Any, int]] = field(default_factory=dict)

    def plus(self, other: Sum, times: int = 1) -> Sum:
        """Return this sum plus a multiple of another."""
        made = Sum(self.number, dict(self.terms))
        made.add(other, times)
        return made

    def add(self, other: Sum, times: int = 1) -> None:
        """Add a multiple of another sum to this one."""
        self.number += times * other.number
        for at, (atom, count) in other.terms.items():
            self.terms[at] = atom, self.terms.get(at, (atom, 0))[1] + times * count

    def of(self, atom: Any) -> int:
        """Return the coefficient of a variable, 0 if it does not occur."""
        return self.terms.get(hash(atom), (atom, 0))[1]

    def variables(self) -> set[int]:
        """Return the variables in the sum (by hash), also those inside terms that are no variables."""
        atoms = (atom for atom, count in self.terms.values() if count)
        return {hash(part) for atom in atoms for part in parts_of(atom) if kind_of(part) in ("Var", "SizeVar")}

    def without(self, atom: Any) -> Sum:
        """Return the sum without the term of a variable."""
        return Sum(self.number, {at: term for at, term in self.terms.items() if at != hash(atom)})

    def outside(self, variables: set[int]) -> Sum:
        """Return the sum without the terms in which any of these variables (by hash) occurs."""
        kept = Sum(self.number)
        for at, term in self.terms.items():
            if (part := Sum(0, {at: term})).variables().isdisjoint(variables):
                kept.add(part)
        return kept

    @property
    def is_number(self) -> bool:
        """True if the sum has no variable."""
        return not any(count for _, count in self.terms.values())

    def same(self, other: Sum) -> bool:
        """Return whether both sums are equal for all values of their variables."""
        apart = self.plus(other, -1)
        return apart.is_number and not apart.number

    def expression(self, tir: Any) -> Any:
        """Return the sum as an expression of TVM."""
        made = None
        for atom, count in self.terms.values():
            if count:
                term = atom * tir.const(count, dtype_of_node(atom))
                made = term if made is None else made + term
        return tir.const(self.number, "int32") if made is None else made + tir.const(self.number, dtype_of_node(made))


@dataclass(frozen=True)
class Memory:
    """Knowledge of which buffers share the same memory."""

    views: Mapping[int, int]  # buffer -> the buffer whose memory it uses (both by hash)

    @classmethod
    def of_body(cls, body: Any) -> Memory:
        """Return the memory of a flattened function's buffers."""
        views: dict[int, int] = {}
        for node in statements(body):
            if kind_of(node) == "DeclBuffer" and kind_of(node.buffer) == "Var":  # TVM 0.27: a buffer is a variable
                seen = [hash(part) for part in parts_of(node.data) if kind_of(part) == "Var"]
                views |= {hash(node.buffer): views.get(seen[0], seen[0])} if len(seen) == 1 else {}
        return cls(views)

    def of(self, buffer: Any) -> int:
        """Return the same number for all buffers of one memory."""
        own = hash(buffer) if kind_of(buffer) == "Var" else hash(buffer.data)
        return self.views.get(own, own)

    def read_in(self, statement: Any) -> set[int]:
        """Return the memory that a statement reads."""
        return {self.of(access_of(load)[0]) for load in loads_of(statement)}


def allocated_in(body: Any) -> set[int]:
    """Return the memory that a flattened function allocates itself (by hash)."""
    found: set[int] = set()
    for node in statements(body):
        kind = kind_of(node)
        if kind == "Allocate":
            found.add(hash(node.buffer_var))
        elif kind == "AllocBuffer":
            found.add(hash(node.buffer))
        elif kind == "LetStmt" and called(node.value) == WORKSPACE:
            found.add(hash(node.var))
    return found


def sum_of(index: Any, named: Mapping[int, Any], variables: set[int]) -> Sum | None:
    """Return an index as a sum; None if a loop variable or a bound name occurs inside anything but a sum."""
    total = Sum()
    return total if _added(index, 1, total, named, variables) else None


def _added(index: Any, times: int, total: Sum, named: Mapping[int, Any], variables: set[int]) -> bool:
    """Add a multiple of an index to a sum; return False if that is no sum."""
    kind = kind_of(index)
    if (number := number_of(index)) is not None:
        total.number += times * number
        return True
    if kind in ("Add", "Sub"):
        second = times if kind == "Add" else -times
        return _added(index.a, times, total, named, variables) and _added(index.b, second, total, named, variables)
    if kind == "Mul":
        if (number := number_of(index.b)) is not None:
            return _added(index.a, times * number, total, named, variables)
        a, b = sum_of(index.a, named, variables), sum_of(index.b, named, variables)
        if a is None or b is None or not (a.is_number or b.is_number):
            return False
        one, number = (a, b.number) if b.is_number else (b, a.number)
        total.add(one, times * number)
        return True
    if kind == "Cast" and counts(index) and counts(index.value):
        return _added(index.value, times, total, named, variables)
    own = hash(index)
    if own in named:
        if not _known(named[own], "loads", _loads):
            return _added(named[own], times, total, named, variables)
    elif kind not in ("Var", "SizeVar"):
        inside = {hash(node) for node in parts_of(index)}
        if not inside.isdisjoint(variables) or any(part in named for part in inside):
            return False
    # What is read under a name may be written since: the name itself is the term.
    own = _known(index, "identity", _identities)[0]
    total.terms[own] = index, total.terms.get(own, (index, 0))[1] + times
    return True


def _identities(node: Any) -> list[int]:
    """Return a number that expressions of the same value share: TVM 0.17 repeats an index in each statement.

    What is read from memory, or computed by an unknown function, has a number of its own.
    """
    kind = kind_of(node)
    if (number := number_of(node)) is not None:
        return [hash((kind, dtype_of_node(node), number))]
    if kind not in PARTS and called(node) not in _OF_NUMBERS:
        return [hash(node)]
    parts = (_known(part, "identity", _identities)[0] for part in direct_parts(node))
    return [hash((kind, called(node), dtype_of_node(node), *parts))]


def _loads(expression: Any) -> list[Any]:
    return [part for part in parts_of(expression) if is_load(part)]


def counts(expression: Any) -> bool:
    """Return whether an expression has dtype int32 or int64: no index overflows these."""
    return dtype_of_node(expression) in ("int32", "int64")


def nests(statement: Any, loops: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield each innermost serial loop: the loops around it, itself last, and its body."""
    if kind_of(statement) == "For":
        around = (*loops, statement)
        inside = list(nests(statement.body, around))
        if not inside and int(statement.kind) == SERIAL:
            yield around, statement.body
        yield from inside
        return
    for part in children(statement):
        yield from nests(part, loops)


def statements(statement: Any) -> Iterator[Any]:
    """Yield a statement and all within it, outer ones first."""
    return iter(_known(statement, "statements", _statements))


def _statements(statement: Any) -> list[Any]:
    found, todo = [], [statement]
    while todo:
        todo.extend(reversed(children(node := todo.pop())))
        found.append(node)
    return found


def gathered(statement: Any, question: str, own: Callable[[Any], list[Any]]) -> list[Any]:
    """Return what `own` finds in a statement and in all within it, outer ones first; each is asked once.

    Parameters
    ----------
    question : str
        Name of `own`, under which the answers are remembered.
    """

    def found(node: Any) -> list[Any]:
        return [*own(node), *(one for part in children(node) for one in gathered(part, question, own))]

    return _known(statement, question, found)


def names_of(body: Any) -> dict[int, Any]:
    """Return the value that each name stands for, by the hash of its variable."""
    return {hash(node.var): node.value for node in statements(body) if kind_of(node) in LETS}


def loop_of(
    tir: Any, name: str, extent: Any, body: Callable[[Any], Any], kind: int | None = None, dtype: str = "int32"
) -> Any:
    """Return a loop of `extent` trips of what `body` makes of its variable; of one trip, the body alone.

    Parameters
    ----------
    extent : int or Expr
    kind : int, optional
        Of a loop that stays one whatever its trips: parallel, vectorized.
    """
    first = tir.const(0, dtype)
    if isinstance(extent, int):
        if extent == 1 and kind is None:
            return body(first)
        extent = tir.const(extent, dtype)
    var = tir.Var(name, dtype)
    return tir.For(var, first, extent, SERIAL if kind is None else kind, body(var))


def with_body(loop: Any, body: Any, tir: Any, trips: Any = None) -> Any:
    """Return a loop with another body, and with other trips if given."""
    extent = loop.extent if trips is None else trips
    return tir.For(loop.loop_var, loop.min, extent, loop.kind, body, loop.thread_binding, loop.annotations)


def children(statement: Any) -> list[Any]:
    """Return the statements of which a statement is made."""
    return _known(statement, "children", _children)


def _children(statement: Any) -> list[Any]:
    kind = kind_of(statement)
    if kind in ("BufferStore", "Evaluate"):
        return []
    if kind == "SeqStmt":
        return list(statement.seq)
    if kind == "IfThenElse":
        return [s for s in (statement.then_case, statement.else_case) if s is not None]
    body = getattr(statement, "body", None)
    return [] if body is None else [body]


def loads_of(statement: Any) -> Iterator[Any]:
    """Yield the loads in a statement and in those within it."""
    for node in statements(statement):
        for value in values_of(node):
            yield from (part for part in parts_of(value) if is_load(part))


def values_of(statement: Any) -> list[Any]:
    """Return the values that a statement itself computes, without the indices of its stores."""
    return _known(statement, "values", _values)


def _values(statement: Any) -> list[Any]:
    fields = _COMPUTED.get(kind_of(statement), ("value", "condition"))
    return [value for name in fields if (value := getattr(statement, name, None)) is not None]


def is_load(node: Any) -> bool:
    """Return whether an expression is a load of one element or vector."""
    return kind_of(node) in ("BufferLoad", "TensorLoad")


def access_of(load: Any) -> tuple[Any, list[Any]]:
    (buffer,) = _known(load, "buffer", _buffers)
    return buffer, list(direct_parts(load))


def _buffers(load: Any) -> list[Any]:
    return [load.buffer if kind_of(load) == "BufferLoad" else load.source]


# Fields that a statement computes, and subexpressions of an expression, by kind: asking a TVM node for a field that it
# lacks is slow.
_COMPUTED = {
    **dict.fromkeys(("BufferStore", "Evaluate", "LetStmt", "Bind", "AttrStmt"), ("value",)),
    **dict.fromkeys(("IfThenElse", "AssertStmt", "Allocate"), ("condition",)),
    **dict.fromkeys(("For", "SeqStmt"), ()),
}
_MADE_OF = {
    **PARTS, "Ramp": ("base", "stride"), "Broadcast": ("value",), "Let": ("value", "body"), "Shuffle": (),
    **dict.fromkeys(("Var", "SizeVar", "IntImm", "FloatImm", "StringImm"), ()),
}  # fmt: skip
_FIELDS = ("a", "b", "value", "condition", "true_value", "false_value", "base", "stride", "body")


def memory_of(buffer: Any) -> int:
    """Return the same number for a buffer and its other views."""
    if kind_of(buffer) == "Var" or not hasattr(buffer, "data"):
        return hash(buffer)
    data = buffer.data
    return hash(data) if kind_of(data) == "Var" else hash(buffer)


def direct_parts(expression: Any) -> list[Any]:
    """Return the expressions of which an expression is made, each once, with none of their own."""
    return _known(expression, "parts", _parts)


def parts_of(expression: Any) -> Iterator[Any]:
    """Yield an expression and all its subexpressions, outer ones first."""
    return iter(_known(expression, "all", _all_parts))


def _all_parts(expression: Any) -> list[Any]:
    return list(_walked(expression))


def _walked(expression: Any) -> Iterator[Any]:
    todo = [expression]
    while todo:
        todo.extend(reversed(_known(node := todo.pop(), "parts", _parts)))
        yield node


def _parts(expression: Any) -> list[Any]:
    kind = kind_of(expression)
    if is_load(expression):
        return list(expression.indices)
    if kind == "Call":
        return list(expression.args)
    found = [p for name in _MADE_OF.get(kind, _FIELDS) if (p := getattr(expression, name, None)) is not None]
    return found + (list(expression.vectors) if kind == "Shuffle" else [])


class _Remembered(threading.local):
    """Parts of nodes by (address, question), with the nodes, which keep their addresses; None: none are kept."""

    known: dict[tuple[int, str], tuple[Any, list[Any]]] | None = None


_remembered = _Remembered()


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Ask TVM for the parts of each node once in this context: nodes do not change, and asking TVM 0.17 is slow."""
    before = _remembered.known
    _remembered.known = {} if before is None else before
    try:
        yield
    finally:
        _remembered.known = before


def address_of(node: Any) -> int:
    """Return a number that no other node has as long as this one is held."""
    kind = type(node)
    if (asked := _ADDRESSES.get(kind)) is None:
        asked = _ADDRESSES[kind] = _by_ctypes if hasattr(kind, "handle") else getattr(kind, "__chandle__", hash)
    return asked(node)


def _by_ctypes(node: Any) -> int:
    return int(node.handle.value)


#: Class of nodes -> its function of a node's address. A node's hash is none: TVM 0.17 computes it in a call, and that
#: of a constant may be its value, of which -1 and -2 have the same.
_ADDRESSES: dict[type, Callable[[Any], int]] = {}


def _known(node: Any, question: str, answer: Callable[[Any], list[Any]]) -> list[Any]:
    """Return the parts of a node, remembered or not."""
    known = _remembered.known
    if known is None:
        return answer(node)
    key = address_of(node), question
    if (found := known.get(key)) is None:
        found = known[key] = node, answer(node)
    return found[1]


def remembered(node: Any, question: str, answer: Callable[[Any], Any]) -> Any:
    """Return the answer to a question about a node, which is asked once while nodes are remembered."""
    return _known(node, question, lambda asked: [answer(asked)])[0]


def kind_of(node: Any) -> str:
    return type(node).__name__


def called(node: Any) -> str:
    """Return the name of the function that an expression calls, without its line's prefix; '' if it calls none."""
    return str(getattr(node.op, "name", "")).rsplit(".", 1)[-1] if kind_of(node) == "Call" else ""


def choice_of(node: Any) -> tuple[Any, ...]:
    """Return the condition of a choice, its value where that holds and the other; nothing of another expression."""
    if kind_of(node) == "Select":
        return node.condition, node.true_value, node.false_value
    return tuple(node.args) if called(node) == "if_then_else" else ()


def our_function(node: Any) -> str:
    """Return the name of the function of `vector_functions.py` that an expression calls by its name; else ''."""
    text = str(getattr(node.args[0], "value", "")) if called(node) == "call_pure_extern" else ""
    return text.removeprefix(OURS) if text.startswith(OURS) else ""


def bits_of(expression: Any) -> int:
    """Return the bits of one number of an expression, from the name of its dtype."""
    found = re.search(r"\d+", dtype_of_node(expression))
    return int(found[0]) if found else 8


def is_vector(expression: Any) -> bool:
    """Return whether an expression has several lanes."""
    return re.search(r"x\d+$", dtype_of_node(expression)) is not None


def in_order(parts: list[Any], tir: Any) -> Any:
    """Return the statements in a sequence; a single one as it is, as TVM has no sequence of one, nor one in another."""
    parts = [s for part in parts for s in (part.seq if kind_of(part) == "SeqStmt" else [part])]
    return tir.SeqStmt(parts) if len(parts) > 1 else parts[0]


def number_of(node: Any) -> int | None:
    if isinstance(node, int):
        return node
    return _known(node, "number", _numbers)[0] if kind_of(node) == "IntImm" else None


def _numbers(node: Any) -> list[int]:
    return [int(node.value)]
