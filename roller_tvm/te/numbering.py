"""Value numbering: equal expressions get the same number."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

#: Kinds of loops, in the order of TVM's `ForKind`.
SERIAL, PARALLEL, VECTORIZED, UNROLLED = range(4)
#: Fields that hold the subexpressions of a node; kinds not listed are variables, constants, reads, calls or unknown.
PARTS = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max"), ("a", "b")),
    **dict.fromkeys(("EQ", "NE", "LT", "LE", "GT", "GE", "And", "Or"), ("a", "b")),
    **dict.fromkeys(("LShift", "RShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor"), ("a", "b")),
    **dict.fromkeys(("Not", "BitwiseNot"), ("a",)),
    "Cast": ("value",),
    "Select": ("condition", "true_value", "false_value"),
}


#: Kind of node -> whether it has a type: TVM 0.17 makes an error text of all fields to say that a field is not there.
_TYPED: dict[type, bool] = {}


def dtype_of_node(node: Any) -> str:
    """Return the dtype of an expression, "handle" for an address; later versions of TVM store it in the type."""
    if (typed := _TYPED.get(type(node))) is None:
        typed = _TYPED[type(node)] = hasattr(node, "ty")
    return str(getattr(node.ty, "dtype", "handle") if typed else node.dtype)


@dataclass
class Numbering:
    """Value numbers of the expressions of one body.

    Parameters
    ----------
    access : callable
        Expression -> (tensor that it reads, indices), or None.
    """

    access: Callable[[Any], tuple[Hashable, list[Any]] | None]
    numbers: dict[Hashable, int] = field(default_factory=dict)
    known: dict[int, tuple[int, Any]] = field(default_factory=dict)  # by address, with what is kept at it

    def __call__(self, node: Any) -> int:
        """Return the number of an expression.

        Examples
        --------
        >>> from tvm import te
        >>> i, number = te.reduce_axis((0, 8), "i").var, Numbering(lambda node: None)
        >>> number(i + 1) == number(i + 1), number(i + 1) == number(i + 2)
        (True, False)
        """
        kind = type(node).__name__
        if kind in ("IntImm", "FloatImm"):  # whose hash is their value's
            return self._number((kind, dtype_of_node(node), str(node.value)))
        own = hash(node)
        if own not in self.known:
            self.known[own] = self._number(self._says(node, kind, own)), node
        return self.known[own][0]

    def _number(self, said: Hashable) -> int:
        return self.numbers.setdefault(said, len(self.numbers))

    def _says(self, node: Any, kind: str, own: int) -> Hashable:
        if (parts := PARTS.get(kind)) is not None:
            told = dtype_of_node(node) if kind == "Cast" else ""
            return kind, told, *[self(getattr(node, name)) for name in parts]
        if kind in ("Var", "SizeVar"):
            return own
        if (read := self.access(node)) is not None:
            return "read", read[0], *[self(index) for index in read[1]]
        if kind == "Call":
            said = str(getattr(node.op, "name", node.op)), dtype_of_node(node)
            return kind, *said, *[self(argument) for argument in node.args]
        return kind, own
