"""isl's names of loops, sizes and memory at a place in a function: the lowest part of the reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...codegen.flat import number_of
from ...te.numbering import dtype_of_node
from .affine import Text
from .cases import Sizes
from .digits import part_of, split_index, summands
from .folds import Folding, Unfoldable
from .kernel import Dim, Kernel
from .sets import library
from .spans import Spans
from .sums import Values


class Naming:
    """Loops around a place, by their digits, and sizes.

    Parameters
    ----------
    open_sizes : Sizes
    """

    def __init__(self, open_sizes: Sizes) -> None:
        self.isl, self.kernel, self.open_sizes = library(), Kernel(), open_sizes
        self.within: list[str] = []  # rules of sizes
        self.bounded: set[str] = set()  # sizes of which these are all
        self.dims: dict[int, tuple[Dim, ...]] = {}  # loop variable -> its digits
        self.sizes: dict[int, str] = {}
        self.values = Values()  # bound name -> its value; a thread's other names -> the first
        self.spans = Spans(self.values, open_sizes.largest)
        self.folding: Folding | None = None  # of the statement that is read
        self.launch: Folding | None = None  # of all statements of a kernel whose threads are one number
        self.reduced: dict[str, tuple[Dim, str]] = {}
        self.begins: dict[int, Any] = {}  # block whose begin takes its place (``Begin``)
        self.loops = self.digits = 0

    def _shape(self, extent: Any) -> str:
        text = self._text()
        found = text.index(extent)
        if text.opaque:
            self.kernel.unread.append(f"the size {text.opaque[0]}")
        return found

    def _text(self) -> Text:
        return Text(self._name, self.values, self.spans, self._digits, self.folding or self.launch)

    def _name(self, var: Any) -> str | None:
        self._refuse(hash(var))
        if hash(var) in self.dims:
            return self._digits(hash(var), 1, 0)
        if not dtype_of_node(var).startswith(("int", "uint")):
            return None
        if hash(var) in self.begins:
            self.kernel.unread.append(f"a block that is not used for its begin alone: {var}")
            return None
        if hash(var) not in self.sizes:
            name = f"p{len(self.sizes)}"
            self.sizes[hash(var)] = name
            self.kernel.parameters[name] = str(var.name)
        return self.sizes[hash(var)]

    def _refuse(self, var: int) -> None:
        """A folded variable is seen in another way than by the number that it is a part of."""
        if any(folding is not None and var in folding.group_of for folding in (self.folding, self.launch)):
            raise Unfoldable

    def _parts(self, var: int, low: int, high: int) -> list[tuple[str, int, int]] | None:
        """Return (name, factor, extent) of each digit of ``var % high // low``; None if it is no sum of digits."""
        dims = self.dims.get(var, ())
        self._refuse(var)
        if var in self.sizes:
            return [(self.sizes[var], 1, 0)] if (low, high) == (1, 0) else None
        whole = dims[0].stride * dims[0].extent if dims else 0
        limits = {d.stride for d in dims}
        if not dims or low not in limits or not (high == 0 or high in limits or high >= whole > 0):
            return None
        own = [d for d in dims if d.stride >= low and (high == 0 or d.stride < high)]
        return [(self.reduced.get(d.var, (d, d.var))[1], d.stride // low, d.extent) for d in own]

    def _digits(self, var: int, low: int, high: int) -> str | None:
        found = self._parts(var, low, high)
        if found is None:
            return None
        told = " + ".join(f"{factor}*{name}" if factor > 1 else name for name, factor, _ in found)
        return f"({told})" if len(found) > 1 else told or "0"

    def _split(self, index: Any, steps: Sequence[int]) -> list[str] | None:
        """Return a flat index as one index a dimension, if ranges of loops alone tell that."""
        if not self.spans.whole(index):
            return None
        terms: Counter[str] = Counter()
        extents: dict[str, int] = {}
        start = 0
        folding = self.folding or self.launch
        if folding is not None and (known := folding.terms(index)) is not None:
            for name, by, extent in known[0]:
                terms[name] += by
                extents[name] = extent
            return split_index(terms, known[1], extents, steps) if all(extents.values()) else None
        for node, factor in summands(index) or [(index, 1)]:
            if (number := number_of(node)) is not None:
                start += factor * number
                continue
            part = part_of(node)
            found = self._parts(hash(part[0]), *part[1:]) if part is not None else None
            if found is None or not all(extent for _, _, extent in found):
                return None
            for name, by, extent in found:
                terms[name] += factor * by
                extents[name] = extent
        return split_index(terms, start, extents, steps)

    def _parsed(self, kind: Any, text: str, sized: bool = True) -> Any:
        """Return a text as a set or a map, for the sizes that there are, or for any if it is not to be `sized`."""
        params = sorted(self.sizes.values())
        head = f"[{', '.join(params)}] -> " if params else ""
        if params and sized:
            text = text.replace(" : ", f" : {' and '.join([*self._ranges(), *self.within])} and ", 1)
        return kind(head + text)

    def _ranges(self) -> list[str]:
        """Return the ranges of sizes that the rules of sizes do not bound."""
        return [f"1 <= {p} <= {self.open_sizes.largest}" for p in sorted(self.sizes.values()) if p not in self.bounded]
