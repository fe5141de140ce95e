"""PrimFuncs as a network runs them: the packing of their constants split off, and done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import relax, s_tir, te

from ..codegen.flat import in_order, is_load, kind_of, number_of
from ..codegen.tensorir_packing import CONSTANTS
from ..errors import UnsupportedOperator
from ..tir.nodes import PACKING, parameters
from ..tuning.numerics import shape_of
from .constants import array_of
from .dead_code import keeping_packed_calls, without_dead_code
from .modules import is_prim_func, with_functions
from .names import with_names

#: Ends the name that TVM gives to the packing that it splits off a function.
_SPLIT_OFF = "_weight_prepack"
#: Attribute of a function: its name before a pass that gives names anew.
_NAME = "roller_name"


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
    >>> kernel, packed = split_packing(schedule.mod["main"], {0: x, 1: weights}, target)
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
            [passes.SplitLayoutRewritePreproc(), Rearranged(), passes.FoldConstant(), passes.DeadCodeElimination()]
        )(builder.finalize())
    call = next(b.value for block in mod["main"].body.blocks for b in block.bindings if isinstance(b.value, relax.Call))
    packed = dict(values)
    for position in positions:
        packed[position] = call.args[1].fields[position].value.numpy()
    return mod[call.args[0].name_hint].with_attr("global_symbol", "main"), packed


def packed_parameters(func: Any) -> list[int]:
    """Positions of the parameters that a block of the function packs."""
    buffers = [_tensor(block.reads[0]) for block in _packing(func)]
    return sorted(n for n, param in enumerate(func.params) for buffer in buffers if hash(param) == hash(buffer))


def taking_packed(func: Any) -> Any:
    """A scheduled function that takes its constants packed in place of packing them.

    TVM's ``RemoveWeightLayoutRewriteBlock`` knows no packing with zeros around the constant.

    Examples
    --------
    >>> kernel = taking_packed(schedule.mod["main"])
    """
    packing = _packing(func)
    if not packing:
        return func
    packed = {hash(_tensor(block.reads[0])): _tensor(block.writes[0]) for block in packing}
    root, own = func.body.block, {hash(block) for block in packing}
    rest = [part for part in root.body.seq if hash(_innermost(part)) not in own]
    made = {hash(tensor) for tensor in packed.values()}
    buffers = [buffer for buffer in root.alloc_buffers if hash(buffer) not in made]
    block = s_tir.SBlock([], [], [], root.name_hint, in_order(rest, tvm.tirx), None, buffers, None, root.annotations)
    params = [packed.get(hash(param), param) for param in func.params]
    return tvm.tirx.PrimFunc(params, s_tir.SBlockRealize([], True, block)).with_attrs(dict(func.attrs.items()))


def _tensor(region: Any) -> Any:
    return region.buffer if hasattr(region, "buffer") else region.source


def _packing(func: Any) -> list[Any]:
    """The blocks of a function that pack its constants: each in loops of its own, first in the function."""
    return [block for block in _blocks(func) if PACKING in (block.annotations or {})]


def _blocks(func: Any) -> list[Any]:
    """The blocks of a function that stand in loops of their own."""
    root = getattr(func.body, "block", None)
    if root is None:
        return []
    statements = root.body.seq if hasattr(root.body, "seq") else [root.body]
    return [block for statement in statements if (block := _innermost(statement)) is not None]


def _innermost(statement: Any) -> Any | None:
    """The block inside of loops; None if there is none."""
    while hasattr(statement, "body"):
        statement = statement.body
    return getattr(statement, "block", None)


@tvm.transform.module_pass(opt_level=0, name="LayoutFreeBuffers")
class LayoutFreeBuffers:
    """Mark the operands of kernels that are constants, whose layout a schedule may choose; names stay."""

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its PrimFuncs marked."""
        whole = {str(var.name_hint): (var, func) for var, func in mod.functions_items() if is_prim_func(func)}
        # TVM's pass numbers names anew: of eleven means, the first comes back as mean11.
        named = with_functions(mod, {var: func.with_attr(_NAME, name) for name, (var, func) in whole.items()})
        marked = without_dead_code(keeping_packed_calls(relax.transform.AttachAttrLayoutFreeBuffers(), named))
        names, functions = dict[str, str](), dict[Any, Any]()
        for var, func in marked.functions_items():
            if is_prim_func(func):
                name = names[str(var.name_hint)] = str(func.attrs[_NAME])
                # TVM's pass gives buffers of open extents layouts of variables that nobody binds.
                constant = func.attrs.get(CONSTANTS, [0])
                functions[var] = func.without_attr(_NAME) if constant else whole[name][1].with_attr(CONSTANTS, [])
        return with_names(with_functions(marked, functions), names)


def pack_constants(mod: Any) -> Any:
    """The module with its constants packed as scheduled functions read them.

    Examples
    --------
    >>> packed = pack_constants(scheduled)
    """
    passes = relax.transform
    funcs = {var: func for var, func in mod.functions_items() if is_prim_func(func)}
    # TVM's pass looks for blocks in every function that is called, and fails where there are none (a cumulative sum).
    unpacked = {var: func for var, func in funcs.items() if not _packing(func)}
    if len(unpacked) < len(funcs):
        x = te.placeholder((1,), name="x")
        stand_in = te.create_prim_func([x, te.compute((1,), lambda i: x[i])])
        shown = {**dict(mod.functions_items()), **dict.fromkeys(unpacked, stand_in)}
        mod = passes.SplitLayoutRewritePreproc()(tvm.IRModule(shown, attrs=mod.attrs, global_infos=mod.global_infos))
        for var, func in unpacked.items():
            mod.update_func(var, func)
    folded = keeping_packed_calls(tvm.transform.Sequential([Rearranged(), passes.FoldConstant()]), mod)
    return without_dead_code(folded)


@tvm.transform.module_pass(opt_level=0, name="Rearranged")
class Rearranged:
    """Replace the packing of a constant, where it only rearranges the elements, by the packed constant.

    ``FoldConstant`` does so too, but compiles each packing first.
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with packed constants."""
        packings = {var: _arrangement(f) for var, f in mod.functions_items() if str(var.name_hint).endswith(_SPLIT_OFF)}
        changed = mod
        for var, func in mod.functions_items():
            if packings and isinstance(func, relax.Function):
                changed = with_functions(changed, {var: _Rearranger(packings).visit_expr(func)})
        return changed


@relax.expr_functor.mutator
class _Rearranger(relax.PyExprMutator):
    """Replaces calls of functions that rearrange constants."""

    def __init__(self, packings: Mapping[Any, Callable[[np.ndarray], np.ndarray] | None]) -> None:
        super().__init__()
        self._packings = packings

    def visit_call_(self, call: Any) -> Any:
        if isinstance(call.op, tvm.ir.Op) and call.op.name == "relax.call_tir":
            packing, arguments = self._packings.get(call.args[0]), call.args[1].fields
            if packing is not None and len(arguments) == 1 and (given := array_of(arguments[0])) is not None:
                return relax.const(packed := packing(given), str(packed.dtype))  # TVM makes float64 float32 otherwise
        return super().visit_call_(call)


def _arrangement(func: Any) -> Callable[[np.ndarray], np.ndarray] | None:
    """Return the function of arrays that a packing is, or None unless it only rearranges the elements."""
    blocks = _blocks(func)
    try:
        buffers = parameters(func)
    except UnsupportedOperator:  # somebody's function of that name, which takes a number
        return None
    if len(blocks) != 1 or len(buffers) != 2:
        return None
    block, (source, packed) = blocks[0], buffers
    plain: list[Any] = [iteration.var for iteration in block.iter_vars]
    value: Any = getattr(block.body, "value", None)
    if not is_load(value) or not all(a.same_as(b) for a, b in zip(value.indices, plain, strict=True)):
        return None
    shape = shape_of(source)
    digits = [_digit(index, plain, shape) for index in block.body.indices]
    order = sorted(range(len(digits)), key=lambda n: (digits[n].dim, -digits[n].weight))
    weights = [1] * len(shape)
    for n in reversed(order):  # the digits of a dimension, from the lowest, make up the whole of it
        digit = digits[n]
        if digit.length != 1 and weights[digit.dim] != digit.weight:
            return None
        weights[digit.dim] *= digit.length
    if tuple(weights) != shape or [d.length for d in digits] != list(shape_of(packed)):
        return None
    split, axes = [digits[n].length for n in order], np.argsort(order)
    return lambda array: np.ascontiguousarray(array.reshape(split).transpose(axes))


class _Digit(NamedTuple):
    """A digit of an index of a tensor: index // weight % length; length 0 if it is none."""

    dim: int
    weight: int
    length: int


def _digit(index: Any, plain: Sequence[Any], shape: Sequence[int]) -> _Digit:
    """Return the digit that an index of a packed tensor is."""
    none = _Digit(0, 1, 0)
    if (number := number_of(index)) is not None:
        return none if number else _Digit(0, 1, 1)
    for dim, var in enumerate(plain):
        if index.same_as(var):
            return _Digit(dim, 1, shape[dim])
    kind = kind_of(index)
    by = number_of(index.b) if kind in ("FloorDiv", "FloorMod") else None
    if not by:
        return none
    dim, weight, length = _digit(index.a, plain, shape)
    if length % by:
        return none
    return _Digit(dim, weight * by, length // by) if kind == "FloorDiv" else _Digit(dim, weight, min(by, length))
