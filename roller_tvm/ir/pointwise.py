"""Named pooling, reductions and element-wise operators."""

from __future__ import annotations

from ..errors import BadInput
from .affine import Index
from .blocks import Ints, Pair, Term, elementwise, padded, read, reduce, slide, spatial, windows
from .expression import TensorExpression
from .named import alike, named
from .parameters import Padding
from .stage import Stage, Tensor


def _pool(
    name: str, n: int, c: int, h: int, w: int, kh: int, kw: int,
    stride: Pair = (1, 1), padding: Padding = "VALID", dilation: Pair = (1, 1), kind: str = "", dtype: str = "float32",
) -> TensorExpression:  # fmt: skip
    combiner = {"avg": "sum", "max": "max"}[name[:3]]
    high, wide = windows(name, h, w, kh, kw, stride, dilation, padding)
    pad = padded("nchw", {"n": n, "c": c, "h": h, "w": w}, high, wide, dtype)
    extents = {"n": n, "c": c, "oh": high.out, "ow": wide.out}
    reads = (read("pad" if pad else "data", ("n", "c", slide("oh", "kh", high), slide("ow", "kw", wide))),)
    axes = (*spatial(extents), *reduce({"kh": kh, "kw": kw}))
    op = "add" if combiner == "sum" else "cmp"
    stages = [*pad, Stage(f"pool_{combiner}", axes, reads, dtype, ((op, 1),), combiner)]
    if combiner == "sum":
        stages.append(elementwise("pool_avg", extents, [read("pool_sum", extents)], dtype, (("div", 1),)))
    return TensorExpression(name, (Tensor("data", (n, c, h, w), dtype),), tuple(stages), f"pool_{combiner}")


avg_pool2d_nchw, max_pool2d_nchw = alike(
    _pool,
    avg_pool2d_nchw="Average over windows; padding does not count into the average; `k` stands for a square window.",
    max_pool2d_nchw="Maximum over windows; `k` stands for a square window.",
)


@named
def global_avg_pool2d_nchw(n: int, c: int, h: int, w: int, dtype: str = "float32") -> TensorExpression:
    """Average over all of height and width."""
    extents = {"n": n, "c": c, "oh": 1, "ow": 1}
    reads = (read("data", ("n", "c", Index.of({"oh": h, "kh": 1}), Index.of({"ow": w, "kw": 1}))),)
    axes = (*spatial(extents), *reduce({"kh": h, "kw": w}))
    stages = (
        Stage("pool_sum", axes, reads, dtype, (("add", 1),), "sum"),
        elementwise("pool_avg", extents, [read("pool_sum", extents)], dtype, (("div", 1),)),
    )
    return TensorExpression(
        "global_avg_pool2d_nchw", (Tensor("data", (n, c, h, w), dtype),), stages, "pool_sum"
    )


def resolve_axes(name: str, shape: Ints, axis: Ints | None) -> Ints:
    """Return the axes to reduce, from 0 and sorted; by default height and width of a 4-D shape, else the last."""
    if axis is None:
        return (2, 3) if len(shape) == 4 else (len(shape) - 1,)
    for a in axis:
        if not -len(shape) <= a < len(shape):
            raise BadInput(
                f"'axis' {a} lies outside the {len(shape)} dimensions of shape {shape}",
                name,
                f"give axis between {-len(shape)} and {len(shape) - 1}",
            )
    return tuple(sorted({a % len(shape) for a in axis}))


def _reduction(
    name: str, shape: Ints, axis: Ints | None = None, keepdims: bool = False, dtype: str = "float32"
) -> TensorExpression:
    combiner = name.removeprefix("reduce_")
    reduced = resolve_axes(name, shape, axis)
    names = [f"r{d}" if d in reduced else f"i{d}" for d in range(len(shape))]
    out = {f"i{d}": 1 if d in reduced else e for d, e in enumerate(shape) if keepdims or d not in reduced}
    axes = (*spatial(out), *reduce({names[d]: shape[d] for d in reduced}))
    op = "add" if combiner == "sum" else "cmp"
    stage = Stage(f"reduce_{combiner}", axes, (read("data", names),), dtype, ((op, 1),), combiner)
    return TensorExpression(name, (Tensor("data", shape, dtype),), (stage,), stage.name)


reduce_sum, reduce_max = alike(
    _reduction,
    reduce_sum="Sum over axes (by default height and width of a 4-D shape, else the last axis).",
    reduce_max="Maximum over axes (by default height and width of a 4-D shape, else the last axis).",
)


@named
def softmax(shape: Ints, axis: Ints = (-1,), dtype: str = "float32") -> TensorExpression:
    """Softmax over one axis."""
    reduced = resolve_axes("softmax", shape, axis)
    if len(reduced) != 1:
        raise BadInput(f"'axis' must be one axis (got {axis})", "softmax", "give axis=-1")
    over = reduced[0]
    every = {f"i{d}": e for d, e in enumerate(shape)}
    kept = {a: e for a, e in every.items() if a != f"i{over}"}
    inner = [a if a in kept else "k" for a in every]
    axes = (*spatial(kept), *reduce({"k": shape[over]}))
    function = "exp" if dtype == "float32" else "special"
    stages = (
        Stage("max", axes, (read("data", inner),), dtype, (("cmp", 1),), "max"),
        elementwise("exp", every, [read("data", every), read("max", kept)], dtype, (("add", 1), (function, 1))),
        Stage("sum", axes, (read("exp", inner),), dtype, (("add", 1),), "sum"),
        elementwise("norm", every, [read("exp", every), read("sum", kept)], dtype, (("div", 1),)),
    )
    return TensorExpression("softmax", (Tensor("data", shape, dtype),), stages, "sum")


@named
def layer_norm(shape: Ints, dtype: str = "float32") -> TensorExpression:
    """Layer normalisation over the last axis, with scale and shift."""
    every = {f"i{d}": e for d, e in enumerate(shape)}
    *rows, last = every
    kept = {a: every[a] for a in rows}
    width = Tensor("gamma", (every[last],), dtype), Tensor("beta", (every[last],), dtype)
    axes = (*spatial(kept), *reduce({"k": every[last]}))
    row = [*kept, "k"]
    stages = (
        Stage("total", axes, (read("data", row),), dtype, (("add", 1),), "sum"),
        Stage(
            "spread", axes, (read("data", row), read("total", kept)), dtype,
            (("add", 1), ("fma", 1)), "sum",
        ),
        elementwise(
            "norm", every,
            [read("data", every), read("total", kept), read("spread", kept), read("gamma", [last]),
             read("beta", [last])],
            dtype, (("add", 2), ("div", 1), ("mul", 1)),
        ),
    )  # fmt: skip
    return TensorExpression("layer_norm", (Tensor("data", shape, dtype), *width), stages, "spread")


@named
def relu(shape: Ints, dtype: str = "float32") -> TensorExpression:
    """max(x, 0), element by element."""
    extents = {f"i{d}": e for d, e in enumerate(shape)}
    stage = elementwise("relu", extents, [read("data", extents)], dtype, (("cmp", 1),))
    return TensorExpression("relu", (Tensor("data", shape, dtype),), (stage,), "relu")


@named
def add(shape: Ints, other: Ints | None = None, dtype: str = "float32") -> TensorExpression:
    """Sum of two tensors; the second, of shape `other`, is broadcast as in numpy."""
    other = other or shape
    extents = {f"i{d}": e for d, e in enumerate(shape)}
    if len(other) > len(shape) or any(
        o not in (1, s) for o, s in zip(other[::-1], shape[::-1], strict=False)
    ):
        raise BadInput(
            f"'other'={other} does not broadcast to 'shape'={shape}",
            "add",
            "give extents equal to those of shape, or 1, aligned at the last dimension",
        )
    tail = list(extents)[len(shape) - len(other) :]
    # An extent that is 1 in both is still indexed by its axis, as TVM does it.
    terms: list[Term] = [a if o == extents[a] else 0 for a, o in zip(tail, other, strict=True)]
    stage = elementwise("add", extents, [read("A", extents), read("B", terms)], dtype, (("add", 1),))
    return TensorExpression("add", (Tensor("A", shape, dtype), Tensor("B", other, dtype)), (stage,), "add")


@named
def transpose(shape: Ints, perm: Ints | None = None, dtype: str = "float32") -> TensorExpression:
    """Permute dimensions; output dimension d is input dimension perm[d] (by default reversed)."""
    order = tuple(range(len(shape)))[::-1] if perm is None else perm
    if sorted(order) != list(range(len(shape))):
        raise BadInput(
            f"'perm'={order} is no permutation of the {len(shape)} dimensions of shape {shape}",
            "transpose",
            f"give perm={','.join(map(str, range(len(shape))))} in another order",
        )
    names = {source: f"i{d}" for d, source in enumerate(order)}
    extents = {f"i{d}": shape[source] for d, source in enumerate(order)}
    stage = elementwise("transpose", extents, [read("data", (names[d] for d in range(len(shape))))], dtype)
    return TensorExpression("transpose", (Tensor("data", shape, dtype),), (stage,), "transpose")
