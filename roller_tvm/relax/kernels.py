"""One PrimFunc as a network runs it: the packing of its constants split off, and done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..tir.packing import CONSTANTS, PACKING


def split_packing(func: Any, values: Mapping[int, np.ndarray], target: Any) -> tuple[Any, dict[int, np.ndarray]]:
    """A scheduled function without the blocks that pack its constants, and its arguments with these packed.

    Parameters
    ----------
    func : PrimFunc
        As `apply_steps_tir` scheduled it.
    values : mapping of position to array
        The inputs, those of constants among them.
    target : Target

    Returns
    -------
    (PrimFunc, dict)
        The function of the packed constants, and `values` with these.

    Examples
    --------
    >>> kernel, packed = split_packing(schedule.mod["main"], {0: x, 1: weights}, target)  # doctest: +SKIP
    """
    positions = packed_parameters(func)
    if not positions:
        return func, dict(values)
    builder, named = relax.BlockBuilder(), func.with_attr("global_symbol", "kernel").with_attr(CONSTANTS, positions)
    out = func.params[len(values)]
    arguments: list[Any] = []
    inputs = []
    for position, array in sorted(values.items()):
        if position in positions:
            arguments.append(relax.const(array))
            continue
        inputs.append(relax.Var(f"x{position}", relax.TensorType(array.shape, str(array.dtype))))
        arguments.append(inputs[-1])
    var = builder.add_func(named, "kernel")
    with builder.function("main", inputs):
        with builder.dataflow():
            shape, dtype = [int(e) for e in out.shape], str(out.dtype)
            result = builder.emit_output(relax.call_tir(var, arguments, relax.TensorType(shape, dtype)))
        builder.emit_func_output(result)
    passes = relax.transform
    with tvm.target.Target(target):
        mod = tvm.transform.Sequential(
            [passes.SplitLayoutRewritePreproc(), passes.FoldConstant(), passes.DeadCodeElimination()]
        )(builder.finalize())
    call = next(b.value for block in mod["main"].body.blocks for b in block.bindings if isinstance(b.value, relax.Call))
    packed = dict(values)
    for position in positions:
        packed[position] = call.args[1].fields[position].value.numpy()
    return mod[call.args[0].name_hint].with_attr("global_symbol", "main"), packed


def packed_parameters(func: Any) -> list[int]:
    """Positions of the parameters that a block of the function packs."""
    found: list[int] = []
    body = func.body.block.body
    statements = list(body.seq) if hasattr(body, "seq") else [body]
    for statement in statements:
        while hasattr(statement, "body"):
            statement = statement.body
        block = getattr(statement, "block", None)
        if block is not None and PACKING in (block.annotations or {}):
            source = block.reads[0]
            buffer = source.buffer if hasattr(source, "buffer") else source.source
            found += [n for n, param in enumerate(func.params) if hash(param) == hash(buffer)]
    return sorted(found)
