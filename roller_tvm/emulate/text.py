"""Strings, comments and brackets of C++: enough to change a source without parsing it."""

from __future__ import annotations

import re
from collections.abc import Iterator

# A comment, a string or a character: nothing in it is code.
OPAQUE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
_PAIRS = {"(": ")", "[": "]", "{": "}"}


def blanked(text: str) -> str:
    """Return the text with comments and the contents of strings replaced by spaces; every character keeps its position.

    Examples
    --------
    >>> blanked('f("a;b"); // c')
    'f("   ");     '
    """

    def hide(match: re.Match[str]) -> str:
        found = match.group()
        if found[0] in "\"'":
            return found[0] + " " * (len(found) - 2) + found[-1]
        return re.sub(r"[^\n]", " ", found)

    return OPAQUE.sub(hide, text)


def matching(plain: str, at: int) -> int:
    """Return the position of the bracket that closes the one at `at`, or -1 if none does; `plain` is blanked text."""
    opened, closes = plain[at], _PAIRS[plain[at]]
    depth = 0
    for position in range(at, len(plain)):
        if plain[position] == opened:
            depth += 1
        elif plain[position] == closes:
            depth -= 1
            if depth == 0:
                return position
    return -1


def split_top(text: str, separator: str) -> list[str]:
    """Return the parts between separators outside all brackets, strings and comments.

    Examples
    --------
    >>> split_top('"a,b", f(x, y), {1, 2}', ",")
    ['"a,b"', ' f(x, y)', ' {1, 2}']
    """
    return [text[start:end] for start, end in _parts(blanked(text), separator)]


def _parts(plain: str, separator: str) -> Iterator[tuple[int, int]]:
    depth = start = 0
    for position, char in enumerate(plain):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == separator and depth == 0:
            yield start, position
            start = position + 1
    yield start, len(plain)
