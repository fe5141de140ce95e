"""PrimFuncs that may leave a result where an operand was: each of its elements is read for its own result alone."""

from __future__ import annotations

from typing import Any

from .joined import blocks_of, shape_of, written_by
from .nodes import buffer_of, key

#: TVM's kDataPar: axes whose points are independent of one another.
_INDEPENDENT = 0


def overwritable(func: Any) -> set[int]:
    """Return the positions of the parameters that may share the memory of a function's result, its last parameter.

    One block stores the result, each element once, and only that block reads the parameter, at the element it stores.

    Examples
    --------
    >>> overwritable(mod["fused_matmul_add"])  # operands, what is added, result
    {2}
    """
    import tvm_ffi
    from tvm import ir, tirx

    result = func.params[-1]
    if shape_of(result) is None or written_by(func) != {len(func.params) - 1}:
        return set()
    stores: list[Any] = []
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, stores.append))
    store, *more = (store for store in stores if key(store.buffer) == key(result))
    if more:
        return set()
    block = next((b for b in blocks_of(func) if b.body.same_as(store)), None)
    if block is None or block.init is not None or any(int(iv.iter_type) != _INDEPENDENT for iv in block.iter_vars):
        return set()
    axes, at = {key(iv.var) for iv in block.iter_vars}, [key(index) for index in store.indices]
    moving = [index for index, node in zip(at, store.indices, strict=True) if not hasattr(node, "value")]
    if len(set(moving)) != len(moving) or set(moving) != axes:
        return set()

    found = {key(param): n for n, param in enumerate(func.params[:-1]) if shape_of(param) == shape_of(result)}
    found = {own: n for own, n in found.items() if str(func.params[n].ty.dtype) == str(result.ty.dtype)}
    reads: dict[int, list[Any]] = {own: [] for own in found}
    tvm_ffi.structural_walk(func.body, (ir.TensorLoad, lambda load: reads.get(key(load.source), []).append(load)))
    here: list[Any] = []
    tvm_ffi.structural_walk(store.value, (ir.TensorLoad, here.append))
    inside = {own: sum(key(load.source) == own for load in here) for own in found}
    return {
        n for own, n in found.items()
        if reads[own] and inside[own] == len(reads[own])
        and all([key(index) for index in load.indices] == at for load in reads[own])
    }  # fmt: skip


def overwriting(func: Any, position: int) -> Any:
    """Return a function without a parameter, whose elements are those of its result before they are stored.

    Parameters
    ----------
    position : int
        One of `overwritable`.

    Examples
    --------
    >>> added = overwriting(mod["fused_matmul_add"], 2)
    """
    import tvm_ffi
    from tvm import ir, tirx

    old, result = func.params[position], func.params[-1]

    def load(node: Any) -> Any:
        return tirx.BufferLoad(result, list(node.indices)) if key(node.source) == key(old) else node

    def region(node: Any) -> Any:
        return tirx.BufferRegion(result, list(node.region)) if key(buffer_of(node)) == key(old) else node

    body = tvm_ffi.structural_map(func.body, [(ir.TensorLoad, load), (ir.TensorRegion, region)], order="post")
    params = [param for n, param in enumerate(func.params) if n != position]
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs)


__all__ = ["overwritable", "overwriting"]
