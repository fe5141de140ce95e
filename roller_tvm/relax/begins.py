"""Begins of open tiles as variables of their own: the last tile begins early, at ``min(block * 16, n - 16)``.

isl pays for a minimum in each set. A launch whose blocks are used for the begin of their tile alone has the begin in
place of the block (``proofs/begins.py``).
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from ..codegen.flat import kind_of, number_of, parts_of, statements, values_of
from ..schedules.proofs.begins import Begin


def with_begins(func: Any) -> tuple[Any, dict[int, Begin]]:
    """Return a lowered function whose tiles' begins are variables: hash of a block's variable -> its begin.

    Blocks that are used otherwise are left as they are.
    """
    found: dict[int, list[Any]] = {}  # block -> the minima that it is in
    blocks: dict[int, Any] = {}
    for part in statements(func.body):
        if kind_of(part) == "AttrStmt" and str(part.attr_key).endswith("thread_extent"):
            tag = str(part.node.thread_tag)
            if tag.startswith("blockIdx") and number_of(part.value) is None:
                blocks[hash(part.node.var)] = part.node.var
    if not blocks:
        return func, {}
    seen: dict[int, int] = {}
    for part in statements(func.body):
        indices = part.indices if kind_of(part) == "BufferStore" else ()
        ends = (part.min, part.extent) if kind_of(part) == "For" else ()
        for node in (*values_of(part), *indices, *ends):
            for inner in parts_of(node):
                key = hash(inner) if kind_of(inner) in ("Var", "SizeVar") else 0
                seen[key] = seen.get(key, 0) + 1
                if kind_of(inner) == "Min" and (block := _block_of(inner, blocks)):
                    found.setdefault(block, []).append(inner)
    begins = {}
    for key, minima in found.items():
        alike = all(tvm_ffi.structural_equal(one, minima[0]) for one in minima)
        if alike and seen[key] == len(minima):  # each minimum has the block once
            begins[key] = Begin(tirx.Var(f"{blocks[key].name}_begin", minima[0].ty.dtype), minima[0])
    if not begins:
        return func, {}

    def begin(node: Any) -> Any:
        known = begins.get(_block_of(node, blocks) or 0)
        return node if known is None else known.var

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.Min, begin), order="post")), begins


def _block_of(minimum: Any, blocks: dict[int, Any]) -> int | None:
    """Return the block of which a minimum of a product and a size, which is no block's, is the begin."""
    own = [hash(part) for part in parts_of(minimum) if hash(part) in blocks and kind_of(part) == "Var"]
    return own[0] if len(own) == 1 else None
