"""Building blocks of named operators: reads, axes, padding stages, epilogues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .affine import Index
from .expression import TensorExpression
from .parameters import Padding, Window
from .stage import REDUCE, SPATIAL, Access, Axis, Stage, Tensor

Term = Index | str | int
Pair = tuple[int, int]
Ints = tuple[int, ...]


def index(term: Term) -> Index:
    """Return the index of an axis (its name), of a constant, or `term` itself if it is an index."""
    if isinstance(term, Index):
        return term
    return Index.axis(term) if isinstance(term, str) else Index.of({}, term)


def terms(*terms: Term) -> tuple[Term, ...]:
    """Return the terms as a tuple typed `Term`; a tuple literal would have a narrower type."""
    return terms


def read(tensor: str, terms: Iterable[Term], guarded: bool = False) -> Access:
    """Return an access with one term per dimension."""
    return Access(tensor, tuple(index(t) for t in terms), guarded)


def spatial(extents: Mapping[str, int]) -> tuple[Axis, ...]:
    """Return spatial axes from names and extents."""
    return tuple(Axis(n, e, SPATIAL) for n, e in extents.items())


def reduce(extents: Mapping[str, int]) -> tuple[Axis, ...]:
    """Return reduction axes from names and extents."""
    return tuple(Axis(n, e, REDUCE) for n, e in extents.items())


def elementwise(
    name: str,
    extents: Mapping[str, int],
    reads: Iterable[Access],
    dtype: str,
    ops: tuple[tuple[str, int], ...] = (),
) -> Stage:
    """Return a stage without reduction over these axes."""
    return Stage(name, spatial(extents), tuple(reads), dtype, ops)


def with_epilogue(
    name: str, inputs: list[Tensor], stages: list[Stage], channel: int, bias: bool, relu: bool
) -> TensorExpression:
    """Add bias over dimension `channel` and ReLU to the last stage, which is the anchor."""
    anchor = stages[-1]
    last, shape, dtype = anchor.name, anchor.shape, anchor.dtype
    extents = {f"i{d}": e for d, e in enumerate(shape)}
    here = list(extents)
    if bias:
        inputs = [*inputs, Tensor("bias", (shape[channel],), dtype)]
        reads = [read(last, here), read("bias", [here[channel]])]
        stages = [*stages, elementwise("bias_add", extents, reads, dtype, (("add", 1),))]
        last = "bias_add"
    if relu:
        stages = [*stages, elementwise("relu", extents, [read(last, here)], dtype, (("cmp", 1),))]
    return TensorExpression(name, tuple(inputs), tuple(stages), anchor.name)


def padded(order: str, sizes: Mapping[str, int], high: Window, wide: Window, dtype: str) -> list[Stage]:
    """Return the stage that pads an image, as a list; empty if nothing is padded. `order` is 'nchw' or 'nhwc'."""
    if high.padded == high.size and wide.padded == wide.size:
        return []
    extents = {**sizes, "h": high.padded, "w": wide.padded}
    offsets = {"h": -high.before, "w": -wide.before}
    reads = [read("data", (Index.of({a: 1}, offsets.get(a, 0)) for a in order), guarded=True)]
    return [elementwise("pad", {a: extents[a] for a in order}, reads, dtype)]


def slide(out: str, window: str, fit: Window) -> Index:
    """Return the index at which a window reads: output times stride plus tap times dilation."""
    return Index.of({out: fit.stride, window: fit.dilation})


def windows(
    name: str, h: int, w: int, kh: int, kw: int, stride: Pair, dilation: Pair, padding: Padding
) -> tuple[Window, Window]:
    """Return how a window fits height and width."""
    return (
        Window.fit(name, "h", h, kh, stride[0], dilation[0], padding, 0),
        Window.fit(name, "w", w, kw, stride[1], dilation[1], padding, 1),
    )


def grouped(axis: str, extent: int, per_group: int) -> tuple[tuple[Axis, ...], Index, Index]:
    """Return the axes of an output channel, the index of its group (`axis // per_group`) and its own index."""
    if per_group == 1:
        return (Axis(axis, extent),), Index.axis(axis), Index.axis(axis)
    if per_group == extent:
        return (Axis(axis, extent),), Index.of({}), Index.axis(axis)
    outer, inner = f"{axis}.o", f"{axis}.i"
    axes = (Axis(outer, extent // per_group, SPATIAL, (axis, per_group)),
            Axis(inner, per_group, SPATIAL, (axis, 1)))  # fmt: skip
    return axes, Index.axis(outer), Index.of({outer: per_group, inner: 1})
