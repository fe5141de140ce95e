"""PrimFuncs as tensor expressions: each block is a stage, as read from a TE operator of the same computation."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import Any

from ..errors import UnsupportedOperator
from ..ir.expression import TensorExpression
from ..ir.pattern import choose_anchor
from ..ir.stage import Stage, Tensor
from ..te.body import StageReader
from ..te.combiners import COMBINERS
from ..te.nodes import REMEDY, dtype_of, extent_of, unique
from .nodes import (
    AlreadyScheduled,
    Nest,
    access_of,
    buffer_of,
    key,
    nests,
    parameters,
    start_of,
    structurally_equal,
)


@dataclass(frozen=True)
class TirReading:
    """A tensor expression read from a PrimFunc, and the function's parts that it came from.

    Parameters
    ----------
    expression : TensorExpression
    blocks : dict
        Stage -> name of its block.
    loops : dict
        Stage -> {loop of the function -> names of the axes it became}, spatial axes first.
    spatial : dict
        Stage -> number of its spatial loops.
    order : dict
        Stage -> for each of these loops, the number of loops around it in the function.
    elsewhere : dict
        Stage -> its stores, if they are not element by element in its axes' order: it can be scheduled, not fused.
    buffers : dict
        Input or stage -> its buffers (a stage with several results has several).
    arguments : tuple of str
        Inputs and outputs in the order of the function's parameters.
    """

    expression: TensorExpression
    blocks: dict[str, str]
    loops: dict[str, dict[str, tuple[str, ...]]]
    spatial: dict[str, int]
    order: dict[str, tuple[int, ...]]
    buffers: dict[str, tuple[Any, ...]]
    arguments: tuple[str, ...]
    elsewhere: dict[str, str] = field(default_factory=dict)

    def own_loops(self) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
        """Return each stage's spatial and reduction loops."""
        return {
            name: (tuple(loops)[: self.spatial[name]], tuple(loops)[self.spatial[name] :])
            for name, loops in self.loops.items()
        }


def read_prim_func(func: Any, name: str | None = None, constants: Collection[str | int] = ()) -> TirReading:
    """Read a PrimFunc that is not scheduled yet.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Function as made by ``te.create_prim_func`` or Relax's ``FuseTIR``: a sequence of blocks, each in its own loops.
    name : str, optional
        Name of the expression; by default the last stage's.
    constants : collection of str or int
        Parameters, by name or position, whose values are known at build time.

    Raises
    ------
    UnsupportedOperator
        If the function cannot be planned: symbolic shapes, opaque blocks and the like.
    AlreadyScheduled
        If its loops are no longer the plain ones.

    Examples
    --------
    >>> from tvm import te
    >>> x = te.placeholder((8, 4), name="x")
    >>> y = te.compute((4, 8), lambda i, j: x[j, i] + 1.0, name="y")
    >>> str(read_prim_func(te.create_prim_func([x, y])).expression.output)
    'y(i:4, j:8) float32 = {1*add} of x[j, i]'
    """
    params = parameters(func)
    found = nests(func)
    where = name or str(func.attrs["global_symbol"] if func.attrs and "global_symbol" in func.attrs else "function")
    names: dict[int, str] = {}
    used: set[str] = set()
    made = {key(b) for nest in found for b in nest.outputs}
    buffers: dict[str, tuple[Any, ...]] = {}
    inputs: list[Tensor] = []
    for position, buffer in enumerate(params):
        if key(buffer) in made:
            continue
        own = unique(str(buffer.name) or "input", used)
        names[key(buffer)] = own
        shape = tuple(extent_of(e, own, f"dimension {d}") for d, e in enumerate(buffer.shape))
        constant = own in constants or position in constants
        inputs.append(Tensor(own, shape, dtype_of(buffer.dtype, own), constant))
        buffers[own] = (buffer,)
    stages: list[Stage] = []
    reading: dict[str, Any] = {"blocks": {}, "loops": {}, "spatial": {}, "order": {}, "elsewhere": {}}
    for nest in found:
        own = unique(nest.name, used)
        for buffer in nest.outputs:
            if key(buffer) in names:
                raise UnsupportedOperator(f"'{buffer.name}' is written by two blocks", where, REMEDY)
            names[key(buffer)] = own
        stage, axes = BlockReader(_view(nest, own), own, names).read()
        stages.append(stage)
        buffers[own] = tuple(nest.outputs)
        reading["blocks"][own] = nest.name
        reading["loops"][own] = axes
        reading["spatial"][own] = len(nest.spatial)
        reading["order"][own] = nest.order
        if nest.elsewhere:
            reading["elsewhere"][own] = nest.elsewhere
    if not stages:
        raise UnsupportedOperator("it computes nothing", where, REMEDY)
    read = {a.tensor for s in stages for a in s.reads}
    results = {names[key(b)] for b in params if key(b) in made}
    stored = tuple(s.name for s in stages if s.name in results and s.name in read)
    unread = [s.name for s in stages if s.name not in read and s.name not in results]
    if moved := [name for name in reading["elsewhere"] if name in read]:
        told = f"block '{moved[0]}' writes {reading['elsewhere'][moved[0]]}, and others read it"
        raise UnsupportedOperator(told, where, REMEDY)
    if unread:
        raise UnsupportedOperator(f"the result of '{unread[0]}' is never used", where, REMEDY)
    try:
        expression = TensorExpression(
            name or stages[-1].name, tuple(inputs), tuple(stages), choose_anchor(stages), stored=stored
        )
    except ValueError as error:
        raise UnsupportedOperator(str(error), where, REMEDY) from error
    order = tuple(dict.fromkeys(names[key(b)] for b in params if key(b) in names))
    return TirReading(expression, **reading, buffers=buffers, arguments=order)


@dataclass(frozen=True, eq=False)
class Iter:
    """An axis of a block in te's form, named like its loop."""

    var: Any
    dom: Any
    label: str


@dataclass(frozen=True)
class Result:
    dtype: str


@dataclass(frozen=True)
class Compute:
    """A block in the form of a te.ComputeOp."""

    axis: list[Iter]
    reduce_axis: list[Iter]
    body: list[Any]
    dtype: str

    def output(self, _number: int) -> Result:
        return Result(self.dtype)


@dataclass(frozen=True)
class Combiner:
    """The kind of a reduction's combiner, or 'other'."""

    kind: str


@dataclass(frozen=True)
class Reduce:
    """A block with an initial value in the form of te's reduction."""

    combiner: Combiner
    source: list[Any]
    init: list[Any] = field(default_factory=list)
    condition: int = 1


class BlockReader(StageReader):
    """Reads one block, whose loads are from buffers."""

    def _access(self, node: Any) -> tuple[str, list[Any]] | None:
        found = access_of(node)
        if found is None:
            return None
        buffer, indices = found
        if key(buffer) not in self.names:
            raise UnsupportedOperator(f"reads '{buffer.name}' before it is computed", self.name, REMEDY)
        return self.names[key(buffer)], indices

    def _which(self, node: Any) -> tuple[Hashable, list[Any]] | None:
        found = access_of(node)
        return None if found is None else (key(found[0]), found[1])

    def _combined(self, reduce: Any) -> str:
        return str(reduce.combiner.kind)


def _view(nest: Nest, name: str) -> Compute:
    spatial = [Iter(iv.var, iv.dom, label) for iv, label in nest.spatial]
    reduce = [Iter(iv.var, iv.dom, label) for iv, label in nest.reduce]
    dtype = str(nest.outputs[0].dtype)
    if not nest.reduce:
        return Compute(spatial, reduce, [nest.value_of(store) for store in nest.stores], dtype)
    own = {key(store.buffer): list(store.indices) for store in nest.stores}
    values = [nest.value_of(store) for store in nest.stores]
    if any(type(value).__name__ == "Let" for value in values):
        raise UnsupportedOperator("its reduction binds values to names before it uses them", name, REMEDY)
    combiner, sources, turned = "other", [], False
    if len(values) == 1:
        node = values[0]
        kind = COMBINERS.get(type(node).__name__)
        sides = getattr(node, "a", None), getattr(node, "b", None)
        for back, (mine, other) in enumerate((sides, sides[::-1])):
            if kind and _is_own(mine, own) and not _reads_own(other, own):
                combiner, sources, turned = kind, [other], bool(back)
                break
    if not sources:
        for value in values:
            _sources(value, own, sources)
    if not sources:
        raise UnsupportedOperator("its reduction reads nothing but its own result", name, REMEDY)
    # TVM knows a reduction that other threads share by its form: what is there, and then what is added.
    known = _begins_as_tvms(nest, combiner) and not turned
    starts = [] if known else [store.value for store in nest.init]
    return Compute(spatial, reduce, [Reduce(Combiner(combiner), sources, starts)] * len(values), dtype)


def _begins_as_tvms(nest: Nest, combiner: str) -> bool:
    """Return whether a reduction starts from TVM's own initial value, so that its parts can start there too."""
    (value, *more), dtype = [store.value for store in nest.init], str(nest.outputs[0].dtype)
    start = getattr(value, "value", None)
    if more or start is None:  # of several results, numbers: each combiner has its own
        return all(getattr(store.value, "value", None) is not None for store in nest.init)
    return combiner == "other" or bool(start == start_of(combiner, dtype))


#: Buffer that a block writes (by ``key``) -> indices of the store.
Own = dict[int, list[Any]]


def _is_own(node: Any, own: Own) -> bool:
    found = None if node is None else access_of(node)
    if found is None or key(found[0]) not in own:
        return False
    if not all(structurally_equal(a, b) for a, b in zip(found[1], own[key(found[0])], strict=True)):
        raise UnsupportedOperator(f"reads another element of '{found[0].name}', which it writes", "block", REMEDY)
    return True


def _children(node: Any) -> list[Any]:
    fields = ("a", "b", "value", "condition", "true_value", "false_value", "var", "body")
    named = [getattr(node, f) for f in fields if getattr(node, f, None) is not None]
    listed = [*getattr(node, "args", ())]
    return [c for c in (*named, *listed) if hasattr(c, "dtype") or hasattr(c, "ty")]


def _reads_own(node: Any, own: Own, known: dict[int, bool] | None = None) -> bool:
    known = {} if known is None else known
    if key(node) not in known:
        known[key(node)] = _is_own(node, own) or any(_reads_own(c, own, known) for c in _children(node))
    return known[key(node)]


def _sources(node: Any, own: Own, found: list[Any], seen: set[int] | None = None) -> None:
    """Collect the largest subexpressions that do not read the result itself: a multi-value combiner's operands."""
    seen = set() if seen is None else seen
    if key(node) in seen or _is_own(node, own):
        return
    seen.add(key(node))
    if not _reads_own(node, own):
        if not any(structurally_equal(node, other) for other in found):
            found.append(node)
        return
    for child in _children(node):
        _sources(child, own, found, seen)


__all__ = ["AlreadyScheduled", "TirReading", "buffer_of", "read_prim_func"]
