"""Values that meet in parts of one sum, product or choice, in words: ``x * u + y * v`` is not ``x * v + y * u``.

Sets of elements tell nothing of that, where the ways of both are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .ways import CHOICE, EITHER, is_neutral

#: A part of an expression: None (a place, or nothing), a read by its number, a constant (its text), or an operation and
#: its parts.
Tree = Any


def words_of(tree: Tree, elements: bool) -> str:
    """Return a part of an expression in words, the same whichever part of a sum stands left.

    Parameters
    ----------
    tree : Tree
    elements : bool
        Whether other elements of an input have other words: what stands behind '#'.
    """
    if not isinstance(tree, tuple):
        return str(tree) if elements else str(tree).partition("#")[0]
    told = [words_of(part, elements) for part in tree[1:]]
    return f"{tree[0]}({', '.join(sorted(told) if tree[0] in EITHER else told)})"


def grown(tree: Tree, leaf: Callable[[int], Tree]) -> Tree:
    """Return a tree with other trees for its reads, parts of one sum side by side, without what changes nothing."""
    if isinstance(tree, int):
        return leaf(tree)
    if not isinstance(tree, tuple):
        return tree
    kind, parts = tree[0], [grown(part, leaf) for part in tree[1:]]
    if kind in EITHER:
        parts = [p for part in parts for p in (part[1:] if isinstance(part, tuple) and part[0] == kind else (part,))]
        parts = [part for part in parts if not (is_constant(part) and is_neutral(part[1:], (kind,)))]
    if kind == CHOICE and any(is_constant(part) for part in parts):  # what pads
        parts = [part for part in parts if not is_constant(part)]
    parts = [part for part in parts if part is not None]
    if len(parts) > 1 or (parts and kind not in (*EITHER, CHOICE)):
        return (kind, *parts)
    return parts[0] if parts else None


def is_constant(tree: Tree) -> bool:
    return isinstance(tree, str) and tree.startswith("=")


def meetings(tree: Tree) -> Iterator[set[tuple[str, str]]]:
    """Yield the parts of each sum, product and choice, where several are made of more than one value.

    Each in words, without and with its elements.
    """
    if not isinstance(tree, tuple):
        return
    several = [part for part in tree[1:] if _size(part) > 1] if tree[0] in (*EITHER, CHOICE) else []
    told = {(words_of(p, False), words_of(p, not (tree[0] == "Add" and is_even(p)))) for p in several}
    if len(told) > 1:  # a square has one
        yield told
    for part in tree[1:]:
        yield from meetings(part)


def whole_parts(tree: Tree) -> Iterator[str]:
    """Yield each sum and product in words, with all of its parts, as often as they are in it."""
    if isinstance(tree, tuple):
        if tree[0] in EITHER:
            yield words_of(tree, False)
        for part in tree[1:]:
            yield from whole_parts(part)


def is_unclear(tree: Tree, label_of: Callable[[str], str]) -> bool:
    """Return whether words leave open which values meet: several elements of one input get there by one way.

    Parameters
    ----------
    tree : Tree
    label_of : function of str
        What stands behind '#' -> the same for the same element.
    """
    if not isinstance(tree, tuple):
        return False
    seen: dict[tuple[str, tuple[str, ...]], set[tuple[str, str]]] = {}
    for part in tree[1:] if tree[0] in EITHER else ():
        known = isinstance(part, tuple) and not (tree[0] == "Add" and is_even(part))
        words = words_of(part, known)  # others may take the places of the same words
        for name, way, label in _leaves_of(part, ()):
            seen.setdefault((name, way), set()).add((label, words))
    for found in seen.values():
        if len({words for _, words in found}) > 1 and len({label_of(label) for label, _ in found}) > 1:
            return True
    return any(is_unclear(part, label_of) for part in tree[1:])


def _leaves_of(tree: Tree, way: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Yield the name of each value, the operations on its way, no more exactly than ``Way``, and its element."""
    if isinstance(tree, tuple):
        kind = str(tree[0]).removeprefix("all ")
        step = () if kind == CHOICE or (kind in EITHER and way[-1:] == (kind,)) else (kind,)
        for part in tree[1:]:
            yield from _leaves_of(part, (*way, *step))
    elif tree is not None and not is_constant(tree):
        name, _, label = str(tree).partition("#")
        yield name, way, label


def is_even(tree: Tree) -> bool:
    """Return whether a part of a sum is a sum of like elements by constants: others may take their places."""
    if not isinstance(tree, tuple):
        return True
    kind, values = tree[0], [part for part in tree[1:] if not is_constant(part)]
    if kind == "Add":
        alike = len({words_of(part, False) for part in values}) == 1 and len(values) == len(tree) - 1
        return alike and all(map(is_even, values))
    return (kind == "Mul" or (kind == "Div" and not is_constant(tree[1]))) and len(values) == 1 and is_even(values[0])


def _size(tree: Tree) -> int:
    return sum(map(_size, tree[1:])) if isinstance(tree, tuple) else int(tree is not None)
