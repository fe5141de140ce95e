"""Virtual threads as TVM writes them out: one after the other, each time around the least statement that names one.

Proofs take virtual threads as threads side by side. TVM (its pass InjectVirtualThread) repeats a store, which is the
same. But it repeats whole branches, loops and the scopes of names whose condition, range or value tells virtual threads
apart. Then what stands within is over for one virtual thread before it begins for the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ...codegen.flat import (
    LETS,
    access_of,
    called,
    children,
    is_load,
    kind_of,
    memory_of,
    number_of,
    parts_of,
    statements,
)
from .blocks import INSTANCE
from .scopes import scope_of, scope_of_var

#: Begins of the tags of virtual threads; those of the second kind share no memory that is allocated among them.
VIRTUAL = ("vthread", "cthread")
_BARRIERS = ("tvm_storage_sync", "storage_sync")


def unlike_threads(body: Any) -> list[str]:
    """Return where virtual threads that are written out differ from threads side by side, in words."""
    found = [_WrittenOut(*one) for part in statements(body) if (one := _virtual(part)) is not None]
    return [why for one in found for why in one.differs(one.body, False)]


def _virtual(part: Any) -> tuple[Any, str, Any] | None:
    """Return the variable, the tag and the body of several virtual threads; None of another statement."""
    if kind_of(part) == "AttrStmt" and str(part.attr_key).endswith(("thread_extent", "virtual_thread")):
        tag, count, var = str(part.node.thread_tag), part.value, part.node.var
        tag = tag if tag or not str(part.attr_key).endswith("virtual_thread") else VIRTUAL[0]
    elif kind_of(part) == "For" and int(part.kind) == 4 and part.thread_binding is not None:
        tag, count, var = str(part.thread_binding.thread_tag), part.extent, part.loop_var
    else:
        return None
    return (var, tag, part.body) if tag.startswith(VIRTUAL) and number_of(count) != 1 else None


class _WrittenOut:
    """The statements of one virtual thread."""

    def __init__(self, var: Any, tag: str, body: Any) -> None:
        self.tag, self.body = tag, body
        self.touched = _touched(hash(var), body)
        self.own: set[int] = set()  # memory that is allocated among the virtual threads
        self.inner: set[int] = set()  # memory of what is repeated as a whole

    def differs(self, part: Any, whole: bool) -> Iterator[str]:
        """Yield what differs in a statement, which is repeated as a `whole` or not."""
        kind = kind_of(part)
        if kind in ("Allocate", "AllocBuffer", "BufferRealize"):
            yield from self._allocation(part, kind, whole)
        elif kind == "BufferStore":
            yield from self._store(part, whole)
        elif kind == "Evaluate":
            yield from self._call(part.value, whole)
        whole = whole or self._repeats(part, kind)
        for inner in children(part):
            yield from self.differs(inner, whole)
            whole = whole or (kind == "SeqStmt" and kind_of(inner) == "Bind" and self._names([inner.value]))

    def _repeats(self, part: Any, kind: str) -> bool:
        """Return whether TVM repeats a statement with all that stands within."""
        if kind == "IfThenElse":
            return self._names([part.condition])
        if kind == "For":
            return self._names([part.min, part.extent])
        if kind in LETS or (kind == "AttrStmt" and str(part.attr_key) != INSTANCE):
            return self._names([part.value])
        return False

    def _allocation(self, part: Any, kind: str, whole: bool) -> Iterator[str]:
        memory = hash(part.buffer_var) if kind == "Allocate" else memory_of(part.buffer)
        scope = scope_of_var(part.buffer_var) if kind == "Allocate" else scope_of(part.buffer)
        (self.inner if whole else self.own).add(memory)
        alone = memory in self.touched or not self.tag.startswith(VIRTUAL[0])
        if scope.startswith("shared") and alone and not whole:
            name = part.buffer_var.name if kind == "Allocate" else part.buffer.name
            yield f"memory of a block of which each virtual thread ({self.tag}) gets its own: {name}"

    def _store(self, part: Any, whole: bool) -> Iterator[str]:
        memory, nodes = memory_of(part.buffer), [part.value, *part.indices]
        if whole:
            yield from self._kept(memory, scope_of(part.buffer), str(part.buffer.name))
        elif memory in self.touched - self.own and self._adds_again(memory, nodes):
            yield f"each virtual thread ({self.tag}) adds what one is to add: {part.buffer.name}"

    def _adds_again(self, memory: int, nodes: list[Any]) -> bool:
        """Return whether a store reads what it writes, and no variable in it tells virtual threads apart."""
        parts = [part for node in nodes for part in parts_of(node)]
        named = any(hash(part) in self.touched for part in parts if kind_of(part) in ("Var", "SizeVar"))
        return not named and any(memory in _read_by(node) for node in nodes)

    def _kept(self, memory: int, scope: str, name: str) -> Iterator[str]:
        """Yield what differs if a statement that is repeated with others writes some memory."""
        if memory in self.own and memory not in self.touched:
            yield f"memory that virtual threads ({self.tag}) share, which each writes under its own condition: {name}"
        elif memory not in self.own | self.inner and not scope.startswith(("global", "shared")):
            yield f"memory of a thread that its virtual threads ({self.tag}) write one after the other: {name}"

    def _call(self, call: Any, whole: bool) -> Iterator[str]:
        if called(call) in _BARRIERS:
            if whole:
                yield f"a barrier under a condition or a range that names a virtual thread ({self.tag})"
        elif whole or self._names([call]):  # TVM does not see memory that a call writes
            for buffer in (access_of(part)[0] for part in parts_of(call) if is_load(part)):
                yield from self._kept(memory_of(buffer), scope_of(buffer), str(buffer.name))

    def _names(self, nodes: Iterable[Any]) -> bool:
        """Return whether expressions tell virtual threads apart."""
        return any(not self.touched.isdisjoint(_read_by(node)) for node in nodes)


def _read_by(node: Any) -> Iterator[int]:
    """Yield the names and the memory that an expression reads."""
    for part in parts_of(node):
        if kind_of(part) in ("Var", "SizeVar"):
            yield hash(part)
        elif is_load(part):
            yield memory_of(access_of(part)[0])


def _touched(first: int, body: Any) -> set[int]:
    """Return names and memory whose values, ranges or places are told by a variable, as TVM finds them.

    Conditions around a store do not count, nor do calls.
    """
    by: dict[int, set[int]] = {}
    for part in statements(body):
        kind = kind_of(part)
        if kind in LETS:
            target, nodes = hash(part.var), [part.value]
        elif kind == "For":
            target, nodes = hash(part.loop_var), [part.min, part.extent]
        elif kind == "BufferStore":
            target, nodes = memory_of(part.buffer), [part.value, *part.indices]
        elif kind == "Allocate":
            target, nodes = hash(part.buffer_var), list(part.extents)
        else:
            continue
        for name in {name for node in nodes for name in _read_by(node)}:
            by.setdefault(name, set()).add(target)
    found, todo = {first}, [first]
    while todo:
        new = by.get(todo.pop(), set()) - found
        found |= new
        todo += new
    return found
