"""Several steps of a register tile's sum in one trip of its loop.

A step of a tile of 6 x 16 floats is 12 multiply-adds, 8 loads, and 3 instructions of the loop. A core that has its
front end for itself hides these; one that shares it with another thread, as the cores of a rented machine do, begins
half as many instructions a cycle. LLVM unrolls small bodies alone (measured on two cores of a loaded Zen 3: products of
197 x 768 x 3072 and 576 x 768 x 768 take 0.75 to 0.9 of the time; in quiet moments all are alike).

The steps become an inner loop, which LLVM unrolls. Of rows of one vector it does not keep a sum in its register: an
element is loaded, multiplied into the sum, and its register is the sum's from there on, so that a trip ends with moves
(196 x 256 x 1024 in tiles of 14 x 8 takes 1.3 times as long).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...device.known import register_file_bytes
from ...te.numbering import dtype_of_node
from ..dialect import Dialect
from ..flat import (
    CHOICE,
    Memory,
    Sum,
    access_of,
    called,
    is_vector,
    kind_of,
    loads_of,
    names_of,
    number_of,
    parts_of,
    statements,
    sum_of,
    values_of,
)
from .loop_blocks import block_of, in_blocks
from .stack_tiles import bits_of_dtype

#: Fewest vectors of sums, as LLVM itself unrolls bodies of fewer.
UNROLLED_SUMS = 8


def with_unrolled_sums(func: Any, dialect: Dialect) -> Any:
    """Return a flattened PrimFunc whose register tiles' sums go on several steps in a trip."""
    memory, named = Memory.of_body(func.body), names_of(func.body)

    def one(loop: Any) -> Any | None:
        return in_blocks(loop, (), dialect) if _adds_up(loop, memory, named) else None

    return func.with_body(dialect.with_loops(func.body, one))


def _adds_up(loop: Any, memory: Memory, named: Mapping[int, Any]) -> bool:
    """Return whether an innermost loop of several blocks adds to rows of vectors, which registers hold."""
    if block_of(loop) in (1, number_of(loop.extent)):
        return False
    stores = []
    for node in statements(loop.body):
        if kind_of(node) in ("For", "IfThenElse") or any(map(_chooses, values_of(node))):
            return False
        if kind_of(node) == "BufferStore":
            stores.append(node)
    sums = [s for s in stores if is_vector(s.value) and memory.of(s.buffer) in memory.read_in(s)]
    bits = sum(bits_of_dtype(dtype_of_node(s.value)) for s in sums)
    if not len(sums) == len(stores) >= UNROLLED_SUMS or bits > 8 * register_file_bytes():
        return False
    return 0 < len(_elements(sums, named, loop)) * 2 <= len(sums)


def _elements(sums: list[Any], named: Mapping[int, Any], loop: Any) -> list[tuple[int, Sum | None]]:
    """Return the elements, by buffer and place, that sums read one by one."""
    found: list[tuple[int, Sum | None]] = []
    for load in (load for store in sums for load in loads_of(store)):
        buffer, indices = access_of(load)
        if is_vector(load):
            continue
        place = sum_of(indices[0], named, {hash(loop.loop_var)}) if len(indices) == 1 else None
        known = [at for own, at in found if own == hash(buffer)]
        if place is None or not any(at is not None and at.same(place) for at in known):
            found.append((hash(buffer), place))
    return found


def _chooses(value: Any) -> bool:
    return any(called(part) == CHOICE for part in parts_of(value))
