"""Rules that damage a file: cuts, flips, and edits that know its structure. The same seed damages alike."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

#: Values that no reader expects where another stood.
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 5, 2**31, 2**63, 10**30, 1e308, float("nan"), float("-inf"), "", "x", "\x1b[31m", "\ud800",
    "nul\0", [], {}, [[]], {"a": []}, "9" * 400, [0] * 300,
)  # fmt: skip
Rule = Callable[[bytes, random.Random], bytes]


def cut(data: bytes, rng: random.Random) -> bytes:
    """Cut the end off."""
    return data[: rng.randrange(len(data) + 1)]


def flip(data: bytes, rng: random.Random) -> bytes:
    """Flip one to eight bits."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        if made:
            made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    return bytes(made)


def overwrite(data: bytes, rng: random.Random) -> bytes:
    """Overwrite a span with zeros, or with noise."""
    start, size = rng.randrange(len(data) + 1), rng.choice((1, 4, 16, 512))
    return data[:start] + rng.choice((bytes(size), rng.randbytes(size))) + data[start + size :]


def shift(data: bytes, rng: random.Random) -> bytes:
    """Leave a span out, or write it twice."""
    start = rng.randrange(len(data) + 1)
    end = min(len(data), start + rng.choice((1, 2, 30, 400)))
    return data[:start] + (data[end:] if rng.random() < 0.5 else data[start:end] + data[start:])


def deepen(data: bytes, rng: random.Random) -> bytes:
    """Put thousands of brackets somewhere."""
    start = rng.randrange(len(data) + 1)
    return data[:start] + rng.choice((b"[", b"{", b'{"a":', b"(")) * rng.choice((50, 300, 5000)) + data[start:]


def rows(data: bytes, rng: random.Random) -> bytes:
    """Swap, drop, repeat or join lines."""
    lines = data.split(b"\n")
    one, two = rng.randrange(len(lines)), rng.randrange(len(lines))
    how = rng.randrange(4)
    if how == 0:
        lines[one], lines[two] = lines[two], lines[one]
    elif how == 1:
        del lines[one]
    elif how == 2:
        lines.insert(two, lines[one])
    else:
        lines[one : one + 2] = [b"".join(lines[one : one + 2])]
    return b"\n".join(lines)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key) of every value within a JSON value."""
    keys: Any = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from _places(value[key])


def edited(value: Any, rng: random.Random) -> Any:
    """Return a JSON value with one to three edits: another value, key or order; something left out or moved."""
    made = {"": copy.deepcopy(value)}
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(_places(made))
        within, key = rng.choice(places)
        how, other = rng.randrange(5), rng.choice(places)
        if how <= 1:
            within[key] = copy.deepcopy(rng.choice(ODD))
        elif how == 2 and within is not made:
            del within[key]
        elif how == 3:
            within[key] = copy.deepcopy(other[0][other[1]])
        elif isinstance(within[key], (int, float)):
            within[key] = rng.choice((-within[key], within[key] * 2, within[key] + 1, str(within[key])))
    return made[""]


def json_line(data: bytes, rng: random.Random) -> bytes:
    """Edit a line that is JSON, or behind the words of a comment."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    start = min((n for n in (lines[at].find(b"{"), lines[at].find(b"[")) if n >= 0), default=-1)
    if start < 0:
        return flip(data, rng)
    try:
        value = json.loads(lines[at][start:])
    except ValueError:
        return flip(data, rng)
    lines[at] = lines[at][:start] + json.dumps(edited(value, rng)).encode("utf-8", "replace")
    return b"\n".join(lines)


def words(data: bytes, rng: random.Random) -> bytes:
    """Put an odd number or word in the place of one."""
    import re

    found = list(re.finditer(rb"[\w.+\-]+", data))
    if not found:
        return flip(data, rng)
    one = rng.choice(found)
    odd = (b"-1", b"0", b"1e400", b"nan", b"99999999999999999999", b"\xff\xfe", b"''", b'"x"', b"true", b"[1,[2]]", b"")
    return data[: one.start()] + rng.choice(odd) + data[one.end() :]


#: Rules by name; those of structure twice, because they reach further.
RULES: dict[str, Rule] = {
    rule.__name__: rule for rule in (cut, flip, overwrite, shift, deepen, rows, json_line, words)
}
_DRAWN = (
    "cut", "flip", "flip", "overwrite", "shift", "deepen", "rows", "json_line", "json_line", "json_line", "words",
    "words",
)  # fmt: skip


def damaged(data: bytes, seed: int, more: Sequence[Rule] = ()) -> tuple[str, bytes]:
    """Return the rule's name and the damaged bytes of a seed; `more` are rules of this kind of file.

    Examples
    --------
    >>> damaged(b"abc", 1) == damaged(b"abc", 1)
    True
    """
    rng = random.Random(seed)
    if more and rng.random() < 0.7:
        rule = rng.choice(more)
        return rule.__name__, rule(data, rng)
    name = rng.choice(_DRAWN)
    return name, RULES[name](data, rng)
