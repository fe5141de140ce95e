"""Tiles of open extents by where they begin: the last one begins early, at ``min(block * 16, n - 16)``.

isl pays for a minimum in each set. Where blocks tell nothing but the begins of their tiles, the begin takes the place
of the block. Then a kernel is read for all numbers from 0 to the last begin. Its blocks are among these, and one block
has nothing to do with another, but for the memory that all of them write: of this, the begins alone are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...codegen.flat import parts_of
from .kernel import Dim
from .naming import Naming


class Unbegun(Exception):
    """Begins do not tell blocks apart, or are not known."""


@dataclass(frozen=True)
class Begin:
    """The begin of a block's tile.

    Parameters
    ----------
    var : Var
        Stands where the begin was.
    value : Min
        Of the block's variable and a size: the begin.
    """

    var: Any
    value: Any


def ranges_of(reader: Naming, block: Any, extent: Any, begin: Begin, dim: Dim) -> tuple[str, str]:
    """Return two rules in isl's notation: from 0 to the last begin, and that a number is a begin.

    Raises
    ------
    Unbegun
    """
    reader.dims[hash(block)] = (Dim(-1, dim.name, dim.kind),)
    sides = [side for side in (begin.value.a, begin.value.b) if not any(hash(p) == hash(block) for p in parts_of(side))]
    text = reader._text()
    own, count, *last = (text.index(node) for node in (begin.value, extent, *sides))
    del reader.dims[hash(block)]
    if len(last) != 1 or text.opaque or text.names:
        raise Unbegun
    near = f"0 <= {dim.var} <= {last[0]}"
    rule = f"0 <= block < {count} and {dim.var} = {own}".replace("i-1", "block")
    told = reader._parsed(reader.isl.Map, f"{{ [block] -> [{dim.var}] : {rule} }}")
    whole = reader._parsed(reader.isl.Set, f"{{ [{dim.var}] : {near} }}")
    if not (told.range().is_subset(whole) and told.is_injective()):
        raise Unbegun
    return near, f"exists (block : {rule})"
