"""Memory that each block, or each thread, has for itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...codegen.flat import access_of, is_load, parts_of
from .kernel import BLOCK, THREAD, Buffer, Dim

#: Statements and loops around a place, from the outside.
Place = Sequence[int | Dim]


def scope_of(buffer: Any) -> str:
    scope = buffer.scope
    return str(scope() if callable(scope) else scope) or "global"


def scope_of_var(var: Any) -> str:
    return str(getattr(var.type_annotation, "storage_scope", "") or "global")


def is_copy(store: Any) -> bool:
    """Return whether a store goes to shared memory, from memory that no thread has for itself."""
    if not scope_of(store.buffer).startswith("shared"):
        return False
    loads = (access_of(part)[0] for part in parts_of(store.value) if is_load(part))
    return not any(scope_of(buffer).startswith("local") for buffer in loads)


class Outside:
    """Memory of blocks or threads that is allocated outside of them, and the launches that use it."""

    def __init__(self) -> None:
        self._allocated: set[int] = set()  # numbers of buffers
        self._launch: dict[int, int | Dim] = {}  # number of a buffer -> the first loop of the launch that uses it

    def add(self, memory: Buffer, place: Place) -> None:
        """Note memory if there are no threads, or blocks for shared memory, around the place of its allocation."""
        kinds = (BLOCK, THREAD) if memory.scope == "shared" else (THREAD,)
        if memory.scope != "global" and not any(isinstance(p, Dim) and p.kind in kinds for p in place):
            self._allocated.add(memory.number)

    def owner(self, memory: Buffer, place: Place) -> str:
        """Return 'block' or 'thread' at a place where each has such memory for itself, else ''.

        One launch without blocks may use shared memory from outside. Another launch has not what this one wrote.
        """
        first = next((n for n, p in enumerate(place) if isinstance(p, Dim) and p.kind in (BLOCK, THREAD)), None)
        if first is None or memory.scope == "global":
            return ""
        if memory.scope != "shared":
            return "thread" if memory.number in self._allocated else ""
        around = [p for p in place if isinstance(p, Dim) and p not in memory.dims]
        if any(p.kind == BLOCK for p in around):
            return "block"
        if memory.number not in self._allocated:
            return ""
        launch = self._launch.setdefault(memory.number, place[first])
        again = any(isinstance(p, Dim) and p in around and p.extent != 1 for p in place[:first])
        return "block" if again or launch != place[first] else ""
