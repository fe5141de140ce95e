"""Inputs of a built model, checked before it runs. Imports no TVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadInput, must_be

#: Name -> (shape, dtype) of a model's inputs; an open extent is the name of its variable.
Signature = Mapping[str, tuple[tuple[int | str, ...], str]]


def by_name(args: Sequence[Any], named: Mapping[str, Any], wanted: Signature, where: str) -> dict[str, Any]:
    """Return the arguments of a call, `args` in order and `named`, by the names of the inputs; `where` is the model.

    Raises
    ------
    BadInput
        Too many arguments, or one given twice.

    Examples
    --------
    >>> by_name([1], {"y": 2}, {"x": ((), "int64"), "y": ((), "int64")}, "model")
    {'x': 1, 'y': 2}
    """
    names = list(wanted)
    if len(args) > len(names):
        raise BadInput(f"takes {len(names)} inputs, {len(args)} are given", where, f"give {', '.join(names)}")
    found = dict(zip(names, args, strict=False))
    for name in named:
        if name in found:
            raise BadInput(f"input '{name}' is given twice", where, "give it once, by position or by name")
    return {**found, **named}


def checked(given: Mapping[str, Any], wanted: Signature, where: str) -> dict[str, Any]:
    """Return the inputs of a model as arrays of its shapes and types; `where` is the model, for messages.

    Parameters
    ----------
    given : mapping of name to array
        numpy arrays, numbers and lists, and whatever has ``__dlpack__``; those on another device than the CPU are
        passed on as they are.

    Raises
    ------
    BadInput
        An input is missing, unknown, or of another shape or type.

    Examples
    --------
    >>> checked({"x": [[1.0, 2.0]]}, {"x": (("n", 2), "float32")}, "model")["x"].dtype.name
    'float32'
    """
    if not isinstance(given, Mapping):
        raise BadInput(must_be("inputs", "a mapping of name to array", given), where, "give {'x': x}, or call model(x)")
    for name in given:
        if name not in wanted:
            raise BadInput(f"has no input '{name}'", where, f"its inputs are {', '.join(wanted)}")
    if missing := [f"'{n}' ({d}{_shape_words(s)})" for n, (s, d) in wanted.items() if n not in given]:
        raise BadInput(f"input {', '.join(missing)} is missing", where, "give every input")
    extents: dict[str, int] = {}
    found = {}
    for name, (shape, dtype) in wanted.items():
        array = _array(given[name], dtype, name, where)
        bind(extents, name, tuple(map(int, array.shape)), shape, where)
        if str(array.dtype).rpartition(".")[2] != dtype:  # torch.float32
            remedy = f"give it as {dtype}: {name}.astype('{dtype}')"
            raise BadInput(f"input '{name}' is {array.dtype}, the model takes {dtype}", where, remedy)
        found[name] = array
    return found


def bind(extents: dict[str, int], name: str, got: tuple[int, ...], shape: tuple[int | str, ...], where: str) -> None:
    """Note the value of each open extent in `extents`; raise ``BadInput`` if the shape does not fit."""
    fits = len(got) == len(shape) and all(
        g == e if isinstance(e, int) else extents.setdefault(e, g) == g for g, e in zip(got, shape, strict=True)
    )
    if not fits:
        known = "".join(f" with {e} = {extents[e]}" for e in shape if isinstance(e, str) and e in extents)
        what = f"'{name}' is {list(got)}, the model takes {_shape_words(shape)}{known}"
        raise BadInput(what, where, "give an array of that shape")


def _shape_words(shape: tuple[int | str, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _array(value: Any, dtype: str, name: str, where: str) -> Any:
    """The value as an array; plain numbers and lists in the model's type."""
    if isinstance(value, np.ndarray) or (_elsewhere(value) and hasattr(value, "shape")):
        return value
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError):  # read-only, or a type that numpy lacks
            return np.asarray(value)
    try:
        array = np.asarray(value)
        same = array.dtype.kind == np.dtype(dtype).kind or (array.dtype.kind in "iu" and np.dtype(dtype).kind == "f")
        return array.astype(dtype) if same and not hasattr(value, "dtype") else array
    except (TypeError, ValueError) as error:
        told = f"input '{name}' is a {type(value).__name__}, which is no array: {error}"
        raise BadInput(told, where, f"give a numpy array of {dtype}") from error


def _elsewhere(value: Any) -> bool:
    """Return True for a tensor on another device than the CPU."""
    device = getattr(value, "__dlpack_device__", None)
    return device is not None and int(device()[0]) != 1  # kDLCPU
