"""Several steps of a register tile's sum in one trip of its loop.

A step of a tile of 6 x 16 floats is 12 multiply-adds, 8 loads, and 3 instructions of the loop. A core that has its
front end for itself hides these; one that shares it with another thread, as the cores of a rented machine do, begins
half as many instructions a cycle. LLVM unrolls small bodies alone (measured on two cores of a loaded Zen 3: products of
197 x 768 x 3072 and 576 x 768 x 768 take 0.75 to 0.9 of the time; in quiet moments all are alike).

The steps become an inner loop, which LLVM unrolls.
"""

from __future__ import annotations

from typing import Any

from ...device.known import register_file_bytes
from ...te.numbering import SERIAL, dtype_of_node
from ..dialect import Dialect
from ..flat import (
    CHOICE,
    Memory,
    access_of,
    called,
    is_vector,
    kind_of,
    loads_of,
    number_of,
    parts_of,
    statements,
    values_of,
)
from .loop_blocks import block_of, in_blocks

#: Fewest vectors of sums: LLVM itself unrolls bodies of fewer.
VECTORS = 8


def with_unrolled_sums(func: Any, dialect: Dialect) -> Any:
    """Return a flattened PrimFunc whose register tiles' sums go on several steps in a trip."""
    memory = Memory.of_body(func.body)

    def one(loop: Any) -> Any | None:
        return in_blocks(loop, (), dialect) if _adds_up(loop, memory) else None

    return func.with_body(dialect.with_loops(func.body, one))


def _adds_up(loop: Any, memory: Memory) -> bool:
    """Return whether an innermost loop of several blocks adds to many vectors, which registers hold."""
    if int(loop.kind) != SERIAL or number_of(loop.min) != 0 or block_of(loop) in (1, number_of(loop.extent)):
        return False
    stores = []
    for node in statements(loop.body):
        if kind_of(node) in ("For", "IfThenElse") or any(map(_chooses, values_of(node))):
            return False
        if kind_of(node) == "BufferStore":
            stores.append(node)
    sums = [s for s in stores if is_vector(s.value) and memory.of(s.buffer) in _read(s, memory)]
    return len(sums) == len(stores) >= VECTORS and sum(map(_bytes, sums)) <= register_file_bytes()


def _bytes(store: Any) -> int:
    import tvm

    told = tvm.DataType(dtype_of_node(store.value))
    return int(told.bits * told.lanes) // 8


def _read(store: Any, memory: Memory) -> set[int]:
    return {memory.of(access_of(load)[0]) for load in loads_of(store)}


def _chooses(value: Any) -> bool:
    return any(called(part) == CHOICE for part in parts_of(value))
