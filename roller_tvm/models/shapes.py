"""Input shapes as users write them, and the path of a model."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ..errors import BadInput, UsageError, must_be

Shapes = Mapping[str, tuple[int, ...]]


def parse_shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Return input shapes from TVMC's words; the brackets may be left out, and are empty for a scalar.

    Examples
    --------
    >>> parse_shapes("x:[1,3,320,320] images/mask:[1, 10] rate:[]")
    {'x': (1, 3, 320, 320), 'images/mask': (1, 10), 'rate': ()}
    """
    pattern = re.compile(r"\s*([^\s\[\],]+):\s*(?:\[([^\]]*)\]|([\d,]+))\s*")
    shapes: dict[str, tuple[int, ...]] = {}
    at = 0
    while at < len(text.rstrip()):
        found = pattern.match(text, at)
        inside = (found[2] or found[3] or "").strip() if found else ""
        dims = re.split(r"[\s,]+", inside) if inside else []
        if found is None or not all(d.isdigit() and int(d) > 0 for d in dims):
            raise UsageError(
                f"{text!r} is not a list of shapes",
                "--input-shapes",
                'write "name:[1,3,224,224] other:[1,10] scalar:[]", every extent from 1',
            )
        shapes[found[1]] = tuple(map(int, dims))
        at = found.end()
    if not shapes:
        raise UsageError("no shape is given", "--input-shapes", 'write "name:[1,3,224,224]"')
    return shapes


def parse_buckets(text: str) -> dict[str, list[int]] | list[int]:
    """Return sizes of open extents from the words of ``--buckets``.

    Examples
    --------
    >>> parse_buckets("1,8,32")
    [1, 8, 32]
    >>> parse_buckets("n:1,8 m:128")
    {'n': [1, 8], 'm': [128]}
    """
    named: dict[str, list[int]] = {}
    for word in text.split():
        name, _, sizes = word.rpartition(":")
        numbers = [s for s in sizes.split(",") if s]
        if not numbers or not all(s.isdigit() and int(s) for s in numbers) or name in named:
            raise UsageError(f"'{text}' is not a list of sizes", "--buckets", 'write "1,8,32", or "n:1,8 m:128"')
        named[name] = [int(s) for s in numbers]
    if "" in named and len(named) > 1:
        raise UsageError(f"'{text}' names some variables only", "--buckets", 'write "n:1,8 m:128"')
    return named.get("", named)


def checked_bounds(given: Mapping[str, tuple[int, int]], where: str = "bounds") -> dict[str, tuple[int, int]]:
    """Return bounds of open extents; a least from 0, a most not below it.

    Examples
    --------
    >>> checked_bounds({"n": (1, 512)})
    {'n': (1, 512)}
    """
    for name, pair in given.items():
        two = isinstance(pair, (tuple, list)) and len(pair) == 2 and all(type(e) is int for e in pair)
        if not two or not 0 <= pair[0] <= pair[1] or pair[1] == 0:
            raise UsageError(must_be(f"{where} of '{name}'", "a least and a most", pair), remedy="give (1, 512)")
    return {str(name): (pair[0], pair[1]) for name, pair in given.items()}


def checked_likely(given: Mapping[str, int], where: str = "likely") -> dict[str, int]:
    """Return likely sizes of open extents, from 1.

    Examples
    --------
    >>> checked_likely({"n": 128})
    {'n': 128}
    """
    for name, size in given.items():
        if type(size) is not int or size < 1:
            raise UsageError(must_be(f"{where} '{name}'", "an int >= 1", size), remedy="give 128")
    return {str(name): size for name, size in given.items()}


def parse_bounds(text: str) -> dict[str, tuple[int, int]]:
    """Return bounds from the words of ``--bounds``.

    Examples
    --------
    >>> parse_bounds("n:1-512 h:32-640")
    {'n': (1, 512), 'h': (32, 640)}
    """
    found = {}
    for word in text.split():
        match = re.fullmatch(r"([^\s:]+):(\d+)-(\d+)", word)
        if match is None:
            raise UsageError(f"'{text}' is not a list of bounds", "--bounds", 'write "n:1-512 h:32-640"')
        found[match[1]] = int(match[2]), int(match[3])
    return checked_bounds(found, "--bounds")


def parse_likely(text: str) -> dict[str, int]:
    """Return likely sizes from the words of ``--likely``.

    Examples
    --------
    >>> parse_likely("n:128")
    {'n': 128}
    """
    pairs = [word.rpartition(":") for word in text.split()]
    if not pairs or not all(name and size.isdigit() for name, _, size in pairs):
        raise UsageError(f"'{text}' is not a list of sizes", "--likely", 'write "n:128 h:320"')
    return checked_likely({name: int(size) for name, _, size in pairs}, "--likely")


def existing(path: str | os.PathLike[str], what: str) -> Path:
    """Return the path of a file that exists; `what` is the kind of file to give, for the remedy.

    Examples
    --------
    >>> existing("nowhere.onnx", "an ONNX model")
    Traceback (most recent call last):
    roller_tvm.errors.BadInput: nowhere.onnx: no such file
      remedy: give the path of an ONNX model
    """
    file = Path(path)
    if not file.is_file():
        raise BadInput("is a folder" if file.is_dir() else "no such file", str(file), f"give the path of {what}")
    return file


def example(shape: str) -> str:
    """Return a shape to try: open extents as 1 for the first, 3 for the second, then 224; four if all are unknown.

    Examples
    --------
    >>> example("[N, 3, height, 640]"), example("[]")
    ('[1,3,224,640]', '[]')
    """
    words = re.findall(r"[^\s\[\],]+", shape if shape.startswith("[") else "[?, ?, ?, ?]")
    guess = ["1", "3", "224", "224", "224"]
    return "[" + ",".join(w if w.isdigit() else guess[min(n, 4)] for n, w in enumerate(words)) + "]"
