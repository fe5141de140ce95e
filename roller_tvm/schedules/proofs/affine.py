"""TVM's index expressions and conditions as text in isl's notation. Knows the nodes of either line by their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...codegen.flat import called, choice_of, direct_parts, is_load, kind_of, number_of
from ...te.numbering import dtype_of_node
from .digits import address, part_of
from .folds import Folding
from .held import held_at
from .spans import Spans, bits_of

_COMPARE = {"LT": "<", "LE": "<=", "GT": ">", "GE": ">=", "EQ": "=", "NE": "!="}
_OPPOSITE = {"LT": ">=", "LE": ">", "GT": "<=", "GE": "<", "EQ": "!=", "NE": "="}


@dataclass
class Text:
    """Expressions of one statement: values that are named on the way, and what is not affine.

    Parameters
    ----------
    name_of : function of Var -> str or None
        isl's name of a loop or a size.
    values : dict
        Hash of a bound variable -> its value.
    spans : Spans
        Of these values and of the loops around.
    digits_of : function of (hash of a variable, low, high)
        Returns ``var % high // low`` as a sum of digits, None where it is none.
    folding : Folding, optional
        Loops and threads that are digits of one number here.
    """

    name_of: Callable[[Any], str | None]
    values: dict[int, Any]
    spans: Spans
    digits_of: Callable[[int, int, int], str | None] = lambda var, low, high: None
    folding: Folding | None = None
    names: list[str] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    opaque: list[str] = field(default_factory=list)

    def index(self, node: Any) -> str:
        """Return an integer expression; a part that is not affine becomes any number."""
        kind, number = kind_of(node), number_of(node)
        if not self.spans.fits(node):
            return self._any(node)
        if number is not None:
            return f"({number})" if number < 0 else str(number)
        if self.folding is not None and self.spans.whole(node) and (told := self.folding.text(node)) is not None:
            return told
        if kind in ("Var", "SizeVar"):
            if hash(node) in self.values:
                return self.index(self.values[hash(node)])
            return self.name_of(node) or self._any(node)
        if kind in ("Add", "Sub"):
            one, other = map(self.index, direct_parts(node))
            return f"({one} {'+' if kind == 'Add' else '-'} {other})"
        if kind == "Mul":
            return self._product(node)
        if kind in ("FloorDiv", "FloorMod", "Div", "Mod"):
            a, b = direct_parts(node)
            return self._quotient(node, a, b, "Mod" in kind, kind in ("Div", "Mod"))
        if kind in ("Min", "Max"):
            return f"{kind.lower()}({self.index(node.a)}, {self.index(node.b)})"
        if kind == "Cast" and dtype_of_node(node.value).startswith(("int", "uint")):
            return self.index(node.value)
        if choice := choice_of(node):
            return self._choice(*choice)
        if is_load(node) and (known := held_at(node, self.values)) is not None:
            return self.index(known)
        if bits := bits_of(node):
            name, part, by = bits
            told = {"*": "({1} * ({0}))", "/": "floor(({0})/{1})", "%": "(({0}) mod {1})"}[name]
            return told.format(self.index(part), by)
        return self._any(node)

    def flat(self, indices: Sequence[Any], steps: Sequence[int]) -> str:
        """Return a flat index of the indices of all dimensions."""
        if not all(map(self.spans.whole, indices)):
            return " + ".join(f"{step} * ({self.index(index)})" for step, index in zip(steps, indices, strict=True))
        told = []
        for term in address(indices, steps):
            known = kind_of(term.base) in ("Var", "SizeVar")
            own = self.digits_of(hash(term.base), term.low, term.high) if known else None
            if own is None:
                own = self.index(term.base)
                own = f"(({own}) mod {term.high})" if term.high else own
                own = f"floor(({own})/{term.low})" if term.low > 1 else own
            told.append(f"{term.factor} * ({own})")
        return " + ".join(told) or "0"

    def _product(self, node: Any) -> str:
        a, b = map(self.index, direct_parts(node))
        for number, other in ((a, b), (b, a)):
            if number.strip("()").lstrip("-").isdigit():
                return f"({number} * {other})"
        return self._any(node)

    def _quotient(self, node: Any, a: Any, b: Any, rest: bool, truncated: bool) -> str:
        by = number_of(b)
        if by is None or by < 1:
            return self._any(node)
        if self.spans.whole(node) and (part := part_of(node)) is not None:
            var, low, high = part
            if (told := self.digits_of(hash(var), low, high)) is not None:
                return told
        value = self.index(a)
        if truncated and self.spans.of(a)[0] < 0:
            name, below = self.another(), f"(-({value}))"
            signs = ((value, ">= 0", ""), (below, "> 0", "-"))
            self.rules.append("(" + " or ".join(
                f"({v} {sign} and {name} = {minus}" + (f"(({v}) mod {by}))" if rest else f"floor(({v})/{by}))")
                for v, sign, minus in signs) + ")")  # fmt: skip
            return name
        return f"(({value}) mod {by})" if rest else f"floor(({value})/{by})"

    def _choice(self, condition: Any, yes: Any, no: Any) -> str:
        name = self.another()
        holds, fails = self.condition(condition), self.condition(condition, holds=False)
        self.rules.append(f"(({holds} and {name} = {self.index(yes)}) or ({fails} and {name} = {self.index(no)}))")
        return name

    def another(self) -> str:
        self.names.append(f"e{len(self.names)}")
        return self.names[-1]

    def _any(self, node: Any) -> str:
        self.opaque.append(str(node))
        return self.another()

    def condition(self, node: Any, holds: bool = True) -> str:
        """Return a condition, or its opposite; one that is not affine is taken as open: it may hold or not."""
        kind = kind_of(node)
        if kind in ("IntImm", "bool") or isinstance(node, bool):
            return "true" if bool(number_of(node)) == holds else "false"
        if kind in ("And", "Or"):
            word = "and" if (kind == "And") == holds else "or"
            return f"({self.condition(node.a, holds)} {word} {self.condition(node.b, holds)})"
        if kind == "Not":
            return self.condition(node.a, not holds)
        if called(node) == "likely":
            return self.condition(node.args[0], holds)
        if called(node) in ("bitwise_and", "bitwise_or") and dtype_of_node(node).startswith(("bool", "uint1")):
            word = "and" if (called(node) == "bitwise_and") == holds else "or"
            return f"({self.condition(node.args[0], holds)} {word} {self.condition(node.args[1], holds)})"
        if kind in ("Var", "SizeVar") and hash(node) in self.values:
            return self.condition(self.values[hash(node)], holds)
        a, b = direct_parts(node) if kind in _COMPARE else (None, None)
        if a is not None and dtype_of_node(a).startswith(("int", "uint")) and not is_load(a):
            known, count = len(self.opaque), len(self.names)
            sign = (_COMPARE if holds else _OPPOSITE)[kind]
            folding = self.folding if self.spans.whole(a) and self.spans.whole(b) else None
            if folding is not None and (told := folding.compared(a, sign, b)) is not None:
                return told
            text = f"({self.index(a)} {sign} {self.index(b)})"
            if len(self.opaque) == known:
                return text
            del self.names[count:], self.opaque[known:]
        self.opaque.append(str(node))
        return "true"
