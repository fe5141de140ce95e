"""The paper's 119 operators, scaled down so that a kernel runs in seconds; remainders stay as awkward as they were."""

import csv
from pathlib import Path

from roller_tvm.ir.parameters import parse_params

FILE = Path(__file__).parents[2] / "python/roller_osdi22_operators.csv"


def smaller(extent, most):
    """Halved down to `most` (keeping what is odd about it); an odd extent beyond it by its remainder.

    >>> [smaller(n, 48) for n in (128, 168, 4032, 1000, 2)]
    [32, 42, 63, 77, 2]
    """
    while extent > most and extent % 2 == 0 and extent // 2 >= most // 2:
        extent //= 2
    return extent if extent <= most * 3 // 2 else most + extent % most


def image(extent):
    """11 to 15 pixels.

    >>> [image(n) for n in (83, 165, 42, 7, 230)]
    [14, 11, 13, 7, 11]
    """
    return extent if extent <= 15 else 11 + extent % 5


def scaled(name, params):
    """Parameters of a smaller operator of the same kind."""
    if "shape" in params:
        extents = [int(e) for e in params["shape"].split("x")]
        if len(extents) == 4:  # images
            small = [3, smaller(extents[1], 20), *map(image, extents[2:])]
        else:
            small = [*(smaller(e, 30) for e in extents[:-1]), smaller(extents[-1], 300)]
        return {**params, "shape": "x".join(map(str, small))}
    most = {"m": 100, "n": 120, "k": 130} if name == "matmul" else {"c": 24, "f": 40}
    images = {} if name == "matmul" else {"n": 2, "h": image(int(params["h"])), "w": image(int(params["w"]))}
    return {**params, **images, **{key: smaller(int(params[key]), of) for key, of in most.items() if key in params}}


def rows():
    """id -> (operator, parameters scaled down)."""
    with FILE.open(newline="") as file:
        found = [(row["id"], row["operator"], parse_params(row["params"])) for row in csv.DictReader(file)]
    return {identity: (name, scaled(name, params)) for identity, name, params in found}
