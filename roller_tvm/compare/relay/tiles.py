"""Ansor's records read back as tiles: the lengths of its splits, stage by stage."""

from __future__ import annotations

import json
from math import prod
from typing import Any


def splits_of(line: str) -> str:
    """What a record says of tiles: each split with its lengths from outside to inside, and what is cached or fused.

    Examples
    --------
    >>> steps = [["SP", 2, 0, 64, [4, 1, 8], 1], ["CHW", 2, "local"], ["PR", 2, 0, "auto_unroll_max_step$16"]]
    >>> splits_of(json.dumps({"i": [["key", "llvm"], [[], steps]], "r": [[1.0], 0, 0, 0], "v": "v0.6"}))
    'stage 2: 64 = 2 x 4 x 1 x 8; cache write of stage 2; unrolled up to 16'
    """
    try:
        steps = json.loads(line)["i"][1][1]
    except (ValueError, KeyError, IndexError, TypeError):
        return ""
    splits: dict[int, list[str]] = {}
    others: list[str] = []
    for step in steps:
        kind = step[0]
        if kind == "SP":
            splits.setdefault(int(step[1]), []).append(_split(step[3], step[4]))
        elif kind in ("FSP", "FFSP"):
            splits.setdefault(int(step[1]), []).append("split as an earlier one")
        elif kind == "CHW":
            others.append(f"cache write of stage {step[1]}")
        elif kind == "CHR":
            others.append(f"cache read of stage {step[1]} in {step[2]}")
        elif kind == "RF":
            others.append(f"rfactor of stage {step[1]}")
        elif kind == "PR" and "auto_unroll_max_step" in str(step[3]):
            others.append(f"unrolled up to {str(step[3]).partition('$')[2]}")
    told = [f"stage {stage}: {', '.join(own)}" for stage, own in splits.items()]
    return "; ".join([*told, *others])


def _split(extent: Any, lengths: list[Any]) -> str:
    known = [int(n) for n in lengths if n is not None]
    outer = "?" if extent is None else str(-(-int(extent) // max(1, prod(known))))
    return f"{extent} = {' x '.join([outer, *map(str, known)])}"
