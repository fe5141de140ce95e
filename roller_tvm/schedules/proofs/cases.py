"""Kernels among which a function chooses by its sizes: each is read on its own, for the sizes that get there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...codegen.flat import children, is_load, kind_of, number_of, parts_of
from ...te.numbering import dtype_of_node
from .sets import library

#: Most kernels that are read on their own.
MOST = 8
#: What a condition on sizes may hold: names, numbers, sums, products, comparisons.
_AFFINE = re.compile(r"^[\w\s+*<>=(),-]+$")
#: Statements within which a choice may stand.
_AROUND = ("SeqStmt", "AllocBuffer", "BufferRealize", "Allocate", "DeclBuffer", "SBlockRealize", "BlockRealize",
           "SBlock", "Block", "Bind", "LetStmt", "AttrStmt", "AssertStmt")  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """Sizes for which a function is proven.

    Parameters
    ----------
    largest : int
        Open sizes are from 1 to this.
    rules : tuple of str
        What else holds, over TVM's names: ``p + n <= 2048``.
    case : mapping
        Hash of a choice by sizes -> whether its condition holds.
    told : tuple of str
        Conditions of the case in isl's notation.
    """

    largest: int = 2**20
    rules: tuple[str, ...] = ()
    case: Mapping[int, bool] = field(default_factory=dict)
    told: tuple[str, ...] = ()

    def within(self, parameters: Mapping[str, str]) -> list[str]:
        """Return the rules in isl's notation; those of other sizes are left out.

        Examples
        --------
        >>> Sizes(rules=("p + n <= 2048", "m == 4")).within({"p0": "n", "p1": "p"})
        ['p1 + p0 <= 2048']
        """
        names = {name: own for own, name in parameters.items()} | {"min": "min", "max": "max"}
        words = {"and": "and", "or": "or", "exists": "exists", "true": "true", "false": "false"}
        found = list(self.told)
        for rule in self.rules:
            text = rule.replace("T.", "").replace("==", "=")
            if _AFFINE.match(text) and set(re.findall(r"[A-Za-z_]\w*", text)) <= {*names, *words}:
                told = re.sub(r"[A-Za-z_]\w*", lambda word: (names | words)[word[0]], text)
                found += [told] if _is_affine(told, parameters) else []
        return found


ANY = Sizes()


def _is_affine(rule: str, parameters: Iterable[str]) -> bool:
    """Return whether isl reads a rule: products of two sizes are none of its."""
    isl = library()
    try:
        isl.Set(f"[{', '.join(parameters)}] -> {{ [] : {rule} }}")
    except isl.Error:
        return False
    return True


def cases_of(body: Any) -> list[dict[int, bool]]:
    """Return the ways through choices between kernels: hash of the choice -> whether its condition holds.

    Of launches that each take a turn by a condition of its own one is made in each way.
    """
    turns = turns_of(body)
    found = [{hash(turn): turn is one for turn in turns} for one in turns] if len(turns) > 1 else list(_ways(body))
    return found if len(found) <= MOST else [{}]


def turns_of(statement: Any) -> list[Any]:
    """Return the loops around launches that make one trip where a condition on sizes holds."""
    if condition_of(statement) is not None and kind_of(statement) == "For":
        return [statement]
    parts = children(statement) if kind_of(statement) in _AROUND and not _is_launch(statement) else []
    return [turn for part in parts for turn in turns_of(part)]


def condition_of(statement: Any) -> Any:
    """Return the condition of a choice, or of a loop of one trip; None of another statement."""
    if kind_of(statement) == "IfThenElse":
        return statement.condition
    if kind_of(statement) != "For" or kind_of(statement.extent) != "Cast" or number_of(statement.min) != 0:
        return None
    return statement.extent.value if dtype_of_node(statement.extent.value) == "bool" else None


def are_all(kernels: Iterable[tuple[Mapping[int, bool], Any]], sizes: Sizes) -> bool:
    """Return whether kernels, each with its case, are all that there are for some sizes."""
    isl, left = library(), None
    for case, kernel in kernels:
        names = ", ".join(kernel.parameters)
        rules = [*(f"1 <= {name} <= {sizes.largest}" for name in kernel.parameters), *sizes.within(kernel.parameters)]
        if len(kernel.case) != len(case) or kernel.unread:
            return False
        whole = isl.Set(f"[{names}] -> {{ [] : {' and '.join(rules) or 'true'} }}")
        own = isl.Set(f"[{names}] -> {{ [] : {kernel.told or 'true'} }}")
        left = (whole if left is None else left).subtract(own)
    return left is not None and bool(left.is_empty())


def _ways(statement: Any) -> Iterator[dict[int, bool]]:
    if is_choice(statement):
        for holds, kernel in ((True, statement.then_case), (False, statement.else_case)):
            yield from ({hash(statement): holds, **way} for way in _ways(kernel))
        return
    parts = children(statement) if kind_of(statement) in _AROUND and not _is_launch(statement) else []
    inner = [ways for part in parts if (ways := list(_ways(part))) != [{}]]
    yield from inner[0] if len(inner) == 1 else [{}]


def is_choice(statement: Any) -> bool:
    """Return whether a statement chooses between two kernels by a condition on no tensor."""
    if kind_of(statement) != "IfThenElse" or statement.else_case is None:
        return False
    return not any(is_load(part) for part in parts_of(statement.condition))


def _is_launch(statement: Any) -> bool:
    return kind_of(statement) == "AttrStmt" and str(statement.attr_key).endswith(("thread_extent", "virtual_thread"))
