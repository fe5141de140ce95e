"""Memory of one number that is the same at each read: a constant of a tensor expression."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...codegen.flat import access_of, children, is_load, kind_of, memory_of, number_of, parts_of, values_of
from .ways import IMMEDIATE


def held_in(body: Any) -> dict[int, Any]:
    """Return memory of one number that one statement writes, in each run and before it is read -> the number."""
    found: dict[int, Any] = {}
    seen: set[int] = set()
    for statement, always in _in_order(body, True):
        nodes = [*values_of(statement), *(statement.indices if kind_of(statement) == "BufferStore" else ())]
        seen |= {memory_of(access_of(p)[0]) for node in nodes for p in parts_of(node) if is_load(p)} - {*found}
        if kind_of(statement) == "DeclBuffer" and getattr(statement, "data", None) is not None:
            memories = {hash(p) for p in parts_of(statement.data) if kind_of(p) == "Var"}
            if memory_of(statement.buffer) not in memories:  # a view, by which the memory may be written again
                seen |= {*memories, memory_of(statement.buffer)}
                found = {memory: value for memory, value in found.items() if memory not in memories}
        if kind_of(statement) != "BufferStore":
            continue
        memory, one = memory_of(statement.buffer), all(number_of(e) == 1 for e in statement.buffer.shape)
        one = one and _first(statement.indices) and kind_of(statement.value) in IMMEDIATE
        if memory not in seen and always and one:
            found[memory] = statement.value
        else:
            found.pop(memory, None)
        seen.add(memory)
    return found


def held_at(load: Any, values: dict[int, Any]) -> Any:
    """Return the number that a load reads, None if that is no constant."""
    buffer, indices = access_of(load)
    return values.get(memory_of(buffer)) if _first(indices) else None


def _first(indices: Any) -> bool:
    return all(number_of(index) == 0 for index in indices)


def _in_order(statement: Any, always: bool) -> Iterator[tuple[Any, bool]]:
    """Yield statements in the order of the function, each with whether it runs once in each run."""
    yield statement, always
    inside = always and kind_of(statement) not in ("For", "IfThenElse", "While")
    for part in children(statement):
        yield from _in_order(part, inside)
