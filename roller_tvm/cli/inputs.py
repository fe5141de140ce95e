"""Inputs of a run: of a file, or filled."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from roller_tvm.cli.arrays import read_arrays
from roller_tvm.errors import BadInput
from roller_tvm.models.arguments import Signature, bind

SEED = 0


def inputs_of(args: argparse.Namespace, wanted: Signature) -> dict[str, Any]:
    """Return the inputs of --inputs, and those that are not given by --fill-mode."""
    given = {} if args.inputs == "random" else read_arrays(Path(args.inputs))
    for name in given:
        if name not in wanted:
            raise BadInput(f"the model has no input '{name}'", args.inputs, f"its inputs are {', '.join(wanted)}")
    extents: dict[str, int] = {}
    for name, array in given.items():
        bind(extents, name, array.shape, wanted[name][0], args.inputs)
    rng = np.random.default_rng(SEED)
    result = {}
    for name, (open_shape, dtype) in wanted.items():
        shape = tuple(e if isinstance(e, int) else extents.get(e, 1) for e in open_shape)
        if name in given:
            result[name] = _cast(name, given[name], dtype, args.inputs)
        elif args.fill_mode == "random" and np.issubdtype(np.dtype(dtype), np.floating):
            result[name] = rng.random(shape).astype(dtype)
        else:
            known = {"zeros": np.zeros(shape, dtype), "ones": np.ones(shape, dtype)}
            result[name] = known.get(args.fill_mode, rng.integers(0, 2, shape).astype(dtype))
    return result


def _cast(name: str, array: Any, dtype: str, where: str) -> Any:
    """An input in the model's type; of whole numbers none may become another.

    Raises
    ------
    BadInput
        A value that the type cannot hold.
    """
    if array.dtype.kind not in "biuf" and "float" not in str(array.dtype):  # bfloat16 is of no kind of numpy's
        raise BadInput(f"'{name}' is an array of {array.dtype}", where, f"give an array of {dtype}")
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        whole = np.issubdtype(np.dtype(dtype), np.integer) or np.dtype(dtype) == np.bool_
        kept = not whole or bool(np.all(cast.astype(array.dtype) == array))
    if not kept:
        lost = array[cast.astype(array.dtype) != array].flat[0]
        what = f"'{name}' has {lost} ({array.dtype}), which the model's {dtype} cannot hold"
        raise BadInput(what, where, f"give an array of {dtype}")
    return cast
