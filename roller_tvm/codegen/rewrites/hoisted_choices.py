"""Choices between tensors before the loops over them: each tensor of a concatenation is read by a loop of its own.

A concatenation, and what is computed of it in place, chooses for each vector which tensor it is from. LLVM moves few
such choices out of a loop, and vectors through many branches element by element: 17 tensors of 28x28 pixels take eight
times as long as the choice before the loop over pixels.
"""

from __future__ import annotations

from typing import Any

from ...te.numbering import SERIAL
from ..dialect import Dialect
from ..flat import CHOICE, LETS, called, gathered, is_load, kind_of, parts_of, statements, values_of, with_body

#: Most copies of a loop's body.
COPIES = 128


def with_hoisted_choices(body: Any, dialect: Dialect) -> Any | None:
    """Return a flattened statement that chooses between tensors before its loops; None if it has no such choice.

    A body occurs up to `COPIES` times, with a name bound in each: run TVM's ``ConvertSSA`` afterwards.
    """
    made = []

    def one(loop: Any) -> Any | None:
        hoisted = _hoisted(loop, dialect)
        if hoisted is not None:
            made.append(hoisted)
        return hoisted

    hoisted = dialect.with_loops(body, one)
    return hoisted if made else None


def _hoisted(loop: Any, dialect: Dialect) -> Any | None:
    """Return a loop behind the choices that are the same in all its trips; None if there is none, or too many."""
    if int(loop.kind) != SERIAL:
        return None
    inside = list(statements(loop.body))
    own = {hash(loop.loop_var)}
    own |= {hash(node.var) for node in inside if kind_of(node) in LETS}
    own |= {hash(node.loop_var) for node in inside if kind_of(node) == "For"}
    innermost, copies = not any(kind_of(node) == "For" for node in inside), 0

    def same(condition: Any) -> bool:
        return not any(is_load(part) or kind_of(part) == "Call" or hash(part) in own for part in parts_of(condition))

    def behind(statement: Any) -> Any:
        nonlocal copies
        if kind_of(statement) == "IfThenElse" and statement.else_case is not None and same(statement.condition):
            condition, yes, no = statement.condition, statement.then_case, statement.else_case
        elif innermost and (asked := [c for c in gathered(statement, "tensors", _conditions) if same(c)]):
            condition = asked[0]
            yes, no = (_chosen(statement, condition, arm, dialect) for arm in (1, 2))
        else:
            copies += 1
            return with_body(loop, statement, dialect.tir)
        if copies >= COPIES:
            return None
        first, second = behind(yes), behind(no)
        return None if first is None or second is None else dialect.tir.IfThenElse(condition, first, second)

    made = behind(loop.body)
    return made if copies > 1 else None


def _conditions(node: Any) -> list[Any]:
    """Return the conditions on which a statement itself reads one tensor or another."""
    choices = [part for value in values_of(node) for part in parts_of(value) if called(part) == CHOICE]
    return [choice.args[0] for choice in choices if between_tensors(choice)]


def between_tensors(choice: Any) -> bool:
    """Return whether both values of a choice are read from memory."""
    return all(any(is_load(part) for part in parts_of(value)) for value in choice.args[1:])


def _chosen(statement: Any, condition: Any, arm: int, dialect: Dialect) -> Any:
    """Return a statement with an arm, 1 or 2, in place of the choices on a condition."""

    def one(node: Any) -> Any | None:
        return node.args[arm] if called(node) == CHOICE and dialect.same(node.args[0], condition) else None

    return dialect.with_calls(statement, one)
