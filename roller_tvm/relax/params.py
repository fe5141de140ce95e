"""Weights for the parameters of a Relax function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm

from ..errors import BadInput


def bindable(mod: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return weights as tensors of the shapes and types that ``main`` takes.

    Raises
    ------
    BadInput
        Nothing takes one, or not as it is.
    """
    main = next((f for v, f in mod.functions_items() if v.name_hint == "main"), None)
    taken = {str(p.name): p.ty for p in getattr(main, "params", ())}
    tensors = _tensors(params)
    for name, tensor in tensors.items():
        if name not in taken:
            what = f"'main' takes no parameter '{name}'" if main is not None else "the module has no 'main' to take it"
            raise BadInput(what, "params", f"it takes {', '.join(taken)}" if taken else "bind them in the module")
        shape = getattr(taken[name], "shape", None)
        wanted = None if shape is None else [int(e) if hasattr(e, "value") else None for e in shape]
        dtype = str(getattr(taken[name], "dtype", ""))
        fits = wanted is None or (
            len(wanted) == len(tensor.shape) and all(w in (None, g) for w, g in zip(wanted, tensor.shape, strict=True))
        )
        if not fits or dtype not in ("", str(tensor.dtype)):
            what = f"'{name}' is {list(map(int, tensor.shape))} of {tensor.dtype}, 'main' takes {taken[name]}"
            raise BadInput(what, "params", "give it in that shape and type")
    return tensors


def _tensors(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: p if hasattr(p, "numpy") else tvm.runtime.tensor(p) for name, p in params.items()}
