"""Statements and expressions of TensorIR, told apart by the names of their classes, which moved between versions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ..errors import UnsupportedOperator
from ..te.nodes import REMEDY
from ..te.quotient import nodes_of

#: ``IterVar.iter_type`` of an axis that may run in any order, and of a reduction.
DATA_PARALLEL, REDUCTION = 0, 2
#: Annotation of a block that packs, as MetaSchedule's RewriteLayout sets it.
PACKING = "meta_schedule.layout_rewrite_preproc"


class AlreadyScheduled(UnsupportedOperator):
    """The function was scheduled already; it is left as it is."""


@dataclass(frozen=True)
class Nest:
    """A block in loops of its own.

    Parameters
    ----------
    name : str
    block : SBlock
    spatial, reduce : tuple of (IterVar, str)
        Axes of the block, each with the name of its loop.
    order : tuple of int
        Number of loops around each axis's loop, spatial axes first.
    stores : tuple of BufferStore
    init : tuple of BufferStore
        Initial values of a reduction.
    lets : tuple of (Var, PrimExpr)
        Variables that are bound inside of the block, in order.
    elsewhere : str
        Its stores, if they are not its axes' elements in their order (a changed layout); else ''.
    """

    name: str
    block: Any
    spatial: tuple[tuple[Any, str], ...]
    reduce: tuple[tuple[Any, str], ...]
    order: tuple[int, ...]
    stores: tuple[Any, ...]
    init: tuple[Any, ...]
    lets: tuple[tuple[Any, Any], ...]
    elsewhere: str = ""

    @property
    def outputs(self) -> list[Any]:
        return [store.buffer for store in self.stores]

    def value_of(self, store: Any) -> Any:
        """Return the stored value: names for whole values are replaced, names inside of it are bound by Let."""
        values = {key(variable): value for variable, value in self.lets}
        value = store.value
        while key(value) in values:
            value = values[key(value)]
        if not any(key(node) in values for node in nodes_of(value)):
            return value
        import tvm

        for variable, named in reversed(self.lets):
            value = tvm.tirx.Let(variable, named, value)
        return value


def key(node: Any) -> int:
    """Return the identity of a variable or buffer, for dictionaries (``==`` of some makes expressions)."""
    return hash(node)


def variables(node: Any) -> set[int]:
    """Return the variables in an index, by ``key``."""
    if type(node).__name__ in ("Var", "SizeVar"):
        return {key(node)}
    children = (getattr(node, "a", None), getattr(node, "b", None), getattr(node, "value", None))
    return set().union(*(variables(c) for c in children if c is not None and not isinstance(c, (int, float))))


def start_of(combiner: str, dtype: str) -> Any:
    """Return the number from which TVM starts a sum, a product, a maximum or a minimum."""
    import tvm

    if combiner in ("max", "min"):
        return (tvm.tirx.min_value if combiner == "max" else tvm.tirx.max_value)(dtype).value
    return {"sum": 0, "prod": 1}[combiner]


def structurally_equal(a: Any, b: Any) -> bool:
    import tvm_ffi

    return bool(tvm_ffi.structural_equal(a, b))


def structural_hash(node: Any) -> int:
    import tvm_ffi

    return int(tvm_ffi.structural_hash(node))


def access_of(node: Any) -> tuple[Any, list[Any]] | None:
    """Return buffer and indices if an expression reads an element, else None."""
    kind = type(node).__name__
    if kind == "BufferLoad":  # until 0.26
        return node.buffer, list(node.indices)
    if kind == "TensorLoad":
        return node.source, list(node.indices)
    return None


def accesses(block: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Yield buffer and indices of each load and store of a block."""
    import tvm_ffi
    from tvm import ir, tirx

    found: list[Any] = []
    for node in (block.body, block.init):
        if node is not None:
            tvm_ffi.structural_walk(node, [(ir.TensorLoad, found.append), (tirx.BufferStore, found.append)])
    for node in found:
        read = access_of(node)
        yield (node.buffer, list(node.indices)) if read is None else read


def buffer_of(region: Any) -> Any:
    """Return the buffer of a block's read or write region."""
    return region.buffer if hasattr(region, "buffer") else region.source


def analyzer_of_tvm() -> Any:
    """Return a new analyzer, TVM's simplifier."""
    import tvm

    return (tvm.sym if hasattr(tvm, "sym") else tvm.arith).Analyzer()


def runs_along(address: Any, lane: Any) -> bool:
    """Return whether an address moves by one element at each step of a variable."""
    import tvm

    found = (tvm.sym if hasattr(tvm, "sym") else tvm.arith).detect_linear_equation(address, [lane])
    return len(found) == 2 and getattr(found[0], "value", None) == 1


def range_of(loop: Any, extent: int | None = None) -> Any:
    """Return the range of a loop's variable, or its first `extent` values."""
    import tvm

    return tvm.ir.Range.from_min_extent(loop.min, loop.extent if extent is None else extent)


def map_of_indices(function: Any, count: int) -> Any:
    """Return TVM's form of a function from `count` indices to others."""
    import tvm

    return tvm.tirx.IndexMap.from_func(function, ndim=count, index_dtype="int32")


def elements_kept(module: Any, name: str) -> int:
    """Return the elements of shared memory that TVM keeps after it narrows buffers to their used parts."""
    import tvm
    from tvm.s_tir import transform

    narrowed = tvm.transform.Sequential([
        transform.LowerInitBlock(), transform.PlanAndUpdateBufferAllocationLocation(),
        transform.ConvertBlocksToOpaque(), transform.LiftThreadBinding(), transform.CompactBufferAllocation(),
    ])(module)  # fmt: skip
    total, todo = 0, [narrowed[name].body]
    while todo:
        node = todo.pop()
        if hasattr(node, "iter_values"):
            for buffer in node.block.alloc_buffers:
                if str(buffer.scope()).startswith("shared"):
                    total += prod(int(extent) for extent in buffer.shape)
            todo.append(node.block.body)
        todo += list(getattr(node, "seq", ())) + [s for s in (getattr(node, "body", None),) if s is not None]
    return total


def parameters(func: Any) -> list[Any]:
    """Return the buffers that a function takes, in the order of its parameters.

    Raises ``UnsupportedOperator`` if a parameter is not a buffer (symbolic shapes, scalars).
    """
    old = getattr(func, "buffer_map", None)
    result = []
    for param in func.params:
        buffer = param if old is None else old.get(param)
        if buffer is None or not hasattr(buffer, "shape") or not hasattr(buffer, "scope"):
            raise UnsupportedOperator(f"parameter '{param.name}' is a scalar, not a tensor", "function", REMEDY)
        try:
            list(buffer.shape)
        except Exception as error:  # TVM's, of a parameter that has no shape to list
            raise UnsupportedOperator(
                f"parameter '{param.name}' is a scalar, not a tensor", "function", REMEDY
            ) from error
        result.append(buffer)
    return result


def tensors_of(func: Any) -> list[Any]:
    """Return the buffers that a function takes, without the sizes that it takes as numbers."""
    return [p for p in func.params if hasattr(p, "shape") and hasattr(p, "scope")]


def root_of(func: Any) -> Any:
    """Return the root block."""
    body = func.body
    if type(body).__name__ not in ("SBlockRealize", "BlockRealize"):
        raise AlreadyScheduled(f"its body is a {type(body).__name__}, it has no blocks", "function", REMEDY)
    return body.block


def nests(func: Any) -> list[Nest]:
    """Return the blocks of a function that was not scheduled yet, in order.

    Raises
    ------
    AlreadyScheduled, UnsupportedOperator
    """
    attrs = func.attrs
    if attrs and any(name in attrs and attrs[name] for name in ("tirx.is_scheduled", "tir.is_scheduled")):
        raise AlreadyScheduled("it is marked as scheduled", "function", REMEDY)
    root = root_of(func)
    body = root.body
    statements = list(body.seq) if type(body).__name__ == "SeqStmt" else [body]
    return [_nest(s) for s in statements]


def _nest(statement: Any) -> Nest:
    loops = []
    while type(statement).__name__ == "For":
        if int(statement.kind) or statement.thread_binding is not None or dict(statement.annotations):
            raise AlreadyScheduled(f"loop '{statement.loop_var.name}' is annotated", "function", REMEDY)
        loops.append(statement)
        statement = statement.body
    if type(statement).__name__ not in ("SBlockRealize", "BlockRealize"):
        kind = type(statement).__name__
        if kind == "SeqStmt":
            raise AlreadyScheduled("several statements share a loop", "function", REMEDY)
        raise UnsupportedOperator(f"expected a block, found a {kind}", "function", REMEDY)
    realize, block = statement, statement.block
    name = str(block.name_hint)
    if int(getattr(realize.predicate, "value", 0)) != 1:
        raise AlreadyScheduled(f"block '{name}' has a predicate", "function", REMEDY)
    if len(block.alloc_buffers) or len(block.match_buffers):
        raise UnsupportedOperator(f"block '{name}' allocates or matches buffers of its own", name, REMEDY)
    by_var = {key(f.loop_var): (n, f) for n, f in enumerate(loops)}
    spatial: list[Any] = []
    reduce: list[Any] = []
    places: dict[int, int] = {}
    for iv, value in zip(block.iter_vars, realize.iter_values, strict=True):
        place, loop = by_var.pop(key(value), (0, None))
        if loop is None and not _is_zero(value):
            raise AlreadyScheduled(f"axis '{iv.var.name}' of block '{name}' is not one loop", name, REMEDY)
        if loop is None:  # what te.create_prim_func gives a result without dimensions
            continue
        label = str(loop.loop_var.name)
        if not (_same(loop.min, iv.dom.min) and _same(loop.extent, iv.dom.extent)):
            raise AlreadyScheduled(f"loop '{label}' is not the whole of axis '{iv.var.name}'", name, REMEDY)
        places[key(iv.var)] = place
        if int(iv.iter_type) not in (DATA_PARALLEL, REDUCTION):
            raise UnsupportedOperator(
                f"axis '{iv.var.name}' of block '{name}' is neither spatial nor a reduction", name, REMEDY
            )
        (spatial if int(iv.iter_type) == DATA_PARALLEL else reduce).append((iv, label))
    if by_var:
        raise AlreadyScheduled(f"block '{name}' does not use all of its loops", name, REMEDY)
    stores, lets = _stores(block.body, name)
    elsewhere = _elsewhere(stores, [iv for iv, _ in spatial])
    if elsewhere and reduce:
        raise UnsupportedOperator(f"block '{name}' writes {elsewhere}", name, REMEDY)
    init: tuple[Any, ...] = ()
    if reduce:
        if block.init is None:
            raise UnsupportedOperator(f"block '{name}' adds to what is there already", name, REMEDY)
        init, named = _stores(block.init, name)
        if named:
            raise UnsupportedOperator(f"block '{name}' binds its initial value to a name first", name, REMEDY)
    order = tuple(places[key(iv.var)] for iv, _ in (*spatial, *reduce))
    return Nest(name, block, tuple(spatial), tuple(reduce), order, stores, init, lets, elsewhere)


def _is_zero(value: Any) -> bool:
    return getattr(value, "value", None) == 0


def _same(a: Any, b: Any) -> bool:
    """Return whether two extents are the same number or the same expression."""
    one, other = getattr(a, "value", None), getattr(b, "value", None)
    if one is not None or other is not None:
        return one == other
    return structurally_equal(a, b) or bool(analyzer_of_tvm().can_prove_equal(a, b))


def _elsewhere(stores: tuple[Any, ...], axes: list[Any]) -> str:
    """Return a description of a store that is not its result's elements in the order of the spatial axes, or ''."""
    for store in stores:
        shape, places = list(store.buffer.shape), list(store.indices)
        plain = len(places) == len(axes) and all(
            is_axis(index, axis) and _same(axis.dom.extent, extent)
            for index, axis, extent in zip(places, axes, shape, strict=False)
        )
        if not plain:
            told = f"{store.buffer.name}[{', '.join(map(str, places))}]"
            axis = ", ".join(str(axis.var.name) for axis in axes)
            return f"{told}, not the whole of it by axes {axis}"
    return ""


def digits(number: Any, extents: Sequence[int]) -> list[Any]:
    """Return the indices of the element of that number, row by row, of a tensor of some extents.

    Examples
    --------
    >>> digits(7, (2, 1, 4))
    [1, 0, 3]
    """
    found, all_, below = [], prod(extents), prod(extents)
    for extent in extents:
        below //= extent
        digit = number // below if below > 1 else number
        found.append(0 if extent == 1 else digit % extent if extent * below < all_ else digit)
    return found


def is_axis(index: Any, axis: Any) -> bool:
    """Return whether an index is an axis itself, or the only point of an axis of extent 1."""
    return key(index) == key(axis.var) or (_is_zero(index) and getattr(axis.dom.extent, "value", None) == 1)


def _stores(body: Any, name: str) -> tuple[tuple[Any, ...], tuple[tuple[Any, Any], ...]]:
    statements = list(body.seq) if type(body).__name__ == "SeqStmt" else [body]
    stores: list[Any] = []
    lets: list[tuple[Any, Any]] = []
    while statements:
        statement = statements.pop(0)
        kind = type(statement).__name__
        if kind == "BufferStore":
            stores.append(statement)
        elif kind in ("Bind", "LetStmt") or (hasattr(statement, "var") and hasattr(statement, "value")):
            lets.append((statement.var, statement.value))
            inner = getattr(statement, "body", None)
            if inner is not None:
                statements[:0] = list(inner.seq) if type(inner).__name__ == "SeqStmt" else [inner]
        else:
            raise UnsupportedOperator(f"a {kind} in the body of block '{name}' cannot be planned", name, REMEDY)
    if not stores:
        raise UnsupportedOperator(f"block '{name}' stores nothing", name, REMEDY)
    return tuple(stores), tuple(lets)
