"""The kernels of a chain of calls: all of them in one function, block by block of the axes that they share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import tvm_ffi
from tvm import ir, relax, tirx
from tvm.s_tir import renew_defs

from ..codegen.tensorir_packing import CONSTANTS
from ..tir.nodes import digits, key, parameters
from ..tir.shared_axes import SharedAxes
from .marks import CONNECTED
from .modules import is_prim_func
from .rewrites import MARKS
from .schedule import kernel_like
from .tasks import without_names


def together(shared: SharedAxes, extents: Sequence[int], tensors: Any, parts: Sequence[Any]) -> Any:
    """Return one function of all blocks; if there is one alone, its own loops stay parallel.

    Parameters
    ----------
    shared : SharedAxes
    extents : sequence of int
        Of a block.
    tensors : sequence of sequence of str
        As of `shared_axes`.
    parts : sequence of PrimFunc
        The functions of one block, scheduled, without blocks of TensorIR.
    """
    counts = [whole // part for whole, part in zip(shared.extents, extents, strict=True)]
    passed = [names[-1] for names in tensors[:-1]]
    block = tirx.Var("block", "int64")
    at = digits(block, counts)
    starts = [digit * extent if extent > 1 else digit for digit, extent in zip(at, extents, strict=True)]
    given: dict[str, Any] = {}  # tensor -> the whole of it
    for axes, names in zip(shared.functions, tensors, strict=True):
        for buffer, name in zip(parameters(axes.func), names, strict=True):
            if name not in passed:
                given.setdefault(name, tirx.decl_buffer(list(buffer.shape), buffer.dtype, f"t{name}"))
    local: dict[str, Any] = {}
    bodies: list[Any] = []
    for axes, names, part in zip(shared.functions, tensors, parts, strict=True):
        part = renew_defs(part)
        moved: dict[int, tuple[Any, list[Any]]] = {}
        for buffer, own, name in zip(parameters(axes.func), parameters(part), names, strict=True):
            if name in passed:
                local.setdefault(name, tirx.decl_buffer(list(own.shape), own.dtype, f"between{name}"))
                moved[key(own)] = local[name], [0] * len(own.shape)
            else:
                at = axes.dims(buffer)
                moved[key(own)] = given[name], [0 if n is None or counts[n] == 1 else starts[n] for n in at]
        bodies.append(_moved(part.body, moved, serial=prod(counts) > 1))
    body: Any = tirx.SeqStmt([*(tirx.AllocBuffer(buffer) for buffer in local.values()), *_flat(bodies)])
    if prod(counts) > 1:
        count = tirx.const(prod(counts), "int64")
        body = tirx.For(block, tirx.const(0, "int64"), count, tirx.ForKind.PARALLEL, body)
    params = [given[name] for name in given_tensors(tensors)]
    return kernel_like(shared.functions[0].func, params, body, {CONNECTED: True, MARKS["edge_vectors"]: True})


def given_tensors(tensors: Sequence[Sequence[str]]) -> list[str]:
    """Return the tensors that a chain's function takes: what it reads, then its result."""
    passed, last = [names[-1] for names in tensors[:-1]], tensors[-1][-1]
    order = dict.fromkeys(name for names in tensors for name in names if name not in passed and name != last)
    return [*order, last]


def plain_chain(funcs: Sequence[Any], tensors: Sequence[Sequence[str]]) -> Any:
    """Return the functions one after the other as one function that is not scheduled, as TVM fuses them.

    Nothing of ours is in it: it is the reference for a chain's kernels.
    """
    builder = relax.BlockBuilder()
    buffers = {name: b for func, names in zip(funcs, tensors, strict=True)
               for b, name in zip(parameters(func), names, strict=True)}  # fmt: skip
    types = {name: relax.TensorType([int(e) for e in b.shape], str(b.dtype)) for name, b in buffers.items()}
    *reads, last = given_tensors(tensors)
    bare = [without_names(func).without_attr(CONSTANTS) if CONSTANTS in (func.attrs or {}) else without_names(func)
            for func in funcs]  # fmt: skip
    called = [builder.add_func(func, f"call{n}") for n, func in enumerate(bare)]

    def function(name: str, attrs: dict[str, Any], body: Any) -> Any:
        params = [relax.Var(f"{name}{read}", types[read]) for read in reads]
        with builder.function(name, params, attrs):
            with builder.dataflow():
                result = builder.emit_output(body(dict(zip(reads, params, strict=True))))
            return builder.emit_func_output(result)

    def chain(known: dict[str, Any]) -> Any:
        for var, names in zip(called, tensors, strict=True):
            arguments = relax.Tuple([known[name] for name in names[:-1]])
            known[names[-1]] = builder.emit(relax.call_tir(var, arguments, types[names[-1]]))
        return known[last]

    whole = function("chain", {"Primitive": True}, chain)
    function("main", {}, lambda known: relax.Call(whole, [known[name] for name in reads]))
    fused = relax.transform.FuseTIR()(builder.get())
    return next(func for var, func in fused.functions_items() if is_prim_func(func))


def _flat(bodies: Sequence[Any]) -> Iterator[Any]:
    for body in bodies:
        yield from body.seq if type(body).__name__ == "SeqStmt" else [body]


def _moved(body: Any, moved: dict[int, tuple[Any, list[Any]]], serial: bool) -> Any:
    """Return loops of one block with whole tensors in the place of its parameters, and perhaps none in parallel."""

    def load(node: Any) -> Any:
        found = moved.get(key(node.source))
        return node if found is None else tirx.BufferLoad(found[0], _added(node.indices, found[1]))

    def store(node: Any) -> Any:
        found = moved.get(key(node.buffer))
        return node if found is None else tirx.BufferStore(found[0], node.value, _added(node.indices, found[1]))

    def one_by_one(loop: Any) -> Any:
        if int(loop.kind) != tirx.ForKind.PARALLEL:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    kinds = [(ir.TensorLoad, load), (tirx.BufferStore, store), *([(tirx.For, one_by_one)] if serial else [])]
    return tvm_ffi.structural_map(body, kinds, order="post")


def _added(indices: Any, starts: Sequence[Any]) -> list[Any]:
    return [
        index if isinstance(start, int) and start == 0 else start + _like(index)
        for index, start in zip(indices, starts, strict=True)
    ]


def _like(index: Any) -> Any:
    return index if str(index.ty.dtype) == "int64" else tirx.Cast("int64", index)
