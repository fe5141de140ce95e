"""PrimFuncs as a network runs them: the packing of their constants split off, and done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax, te

from ..codegen.tensorir_packing import CONSTANTS
from ..tir.nodes import PACKING
from .dead_code import keeping_packed_calls, without_dead_code
from .names import with_names_of


def split_packing(func: Any, values: Mapping[int, np.ndarray], target: Any) -> tuple[Any, dict[int, np.ndarray]]:
    """A scheduled function without the blocks that pack its constants, and its arguments with these packed.

    Parameters
    ----------
    func : PrimFunc
        As `apply_steps_tir` scheduled it.
    values : mapping of position to array
        The inputs, those of constants among them.

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
            arguments.append(relax.const(array, str(array.dtype)))
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
    sources = [block.reads[0] for block in _packing(func)]
    buffers = [source.buffer if hasattr(source, "buffer") else source.source for source in sources]
    return sorted(n for n, param in enumerate(func.params) for buffer in buffers if hash(param) == hash(buffer))


def _packing(func: Any) -> list[Any]:
    """The blocks of a function that pack its constants: each in loops of its own, first in the function."""
    root = getattr(func.body, "block", None)
    if root is None:
        return []
    found = []
    for statement in root.body.seq if hasattr(root.body, "seq") else [root.body]:
        while hasattr(statement, "body"):
            statement = statement.body
        block = getattr(statement, "block", None)
        if block is not None and PACKING in (block.annotations or {}):
            found.append(block)
    return found


@tvm.transform.module_pass(opt_level=0, name="LayoutFreeBuffers")
class LayoutFreeBuffers:
    """Mark the operands of kernels that are constants, whose layout a schedule may choose; names stay."""

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its PrimFuncs marked."""
        marked = keeping_packed_calls(relax.transform.AttachAttrLayoutFreeBuffers(), mod)
        return with_names_of(without_dead_code(marked), mod)


def pack_constants(mod: Any) -> Any:
    """The module with its constants packed as scheduled functions read them.

    Examples
    --------
    >>> packed = pack_constants(scheduled)  # doctest: +SKIP
    """
    passes = relax.transform
    funcs = {var: func for var, func in mod.functions_items() if type(func).__name__ == "PrimFunc"}
    # TVM's pass looks for blocks in every function that is called, and fails where there are none (a cumulative sum).
    unpacked = {var: func for var, func in funcs.items() if not _packing(func)}
    if len(unpacked) < len(funcs):
        x = te.placeholder((1,), name="x")
        stand_in = te.create_prim_func([x, te.compute((1,), lambda i: x[i])])
        shown = {**dict(mod.functions_items()), **dict.fromkeys(unpacked, stand_in)}
        mod = passes.SplitLayoutRewritePreproc()(tvm.IRModule(shown, attrs=mod.attrs, global_infos=mod.global_infos))
        for var, func in unpacked.items():
            mod.update_func(var, func)
    return without_dead_code(keeping_packed_calls(passes.FoldConstant(), mod))
