"""Reference answers of operators, twice: a kernel of ``support.cu`` with its sizes, and a few elements in Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from roller_bench.kit.inputs import allowed, decoded, seed_of, value
from roller_tvm.errors import UnsupportedOperator
from roller_tvm.ir.operators import lookup, normalize, resolve_axes
from roller_tvm.ir.parameters import Window

#: Kernel name of a graph's reference: instead of a kernel of ``support.cu``, the plan of single operators in the same
#: file computes it.
UNFUSED = "unfused"
#: Most additions in Python to check one operator, and most elements checked.
MOST_TERMS, ELEMENTS = 20_000, 4


@dataclass(frozen=True)
class Reference:
    """The computation of an operator by `support.cu`."""

    kernel: str  # name of a kernel in `support.cu`, or UNFUSED for a graph
    sizes: tuple[int, ...]  # the kernel's argument `d`
    inputs: tuple[tuple[int, ...], ...]  # shapes of the inputs
    output: tuple[int, ...]  # shape of the output
    #: Terms summed for one element; for a graph, the length of one sum with the rounding error of its longest chain.
    terms: int
    flops: int
    #: For a graph: (index, value) of elements of its result, computed by TVM's own unscheduled kernels on a CPU.
    known: tuple[tuple[int, float], ...] = ()

    @property
    def elements(self) -> int:
        """Number of elements of the output."""
        return prod(self.output)

    def element(self, index: int) -> float:
        """Compute one element of the output for the kit's inputs in Python; for a graph, look up a known one.

        Examples
        --------
        >>> reference_of("matmul", {"m": 2, "n": 3, "k": 4}).element(0) * 128**2
        -7042.0
        """
        if self.kernel == UNFUSED:
            return dict(self.known)[index]
        total = {"pool2d": _pooled, "relu": _relu}.get(self.kernel)
        if total is not None:
            return total(self, index)
        return sum(a * b for a, b in _factors(self, index))


def reference_of(operator: str, params: Mapping[str, Any]) -> Reference:
    """Return the reference of a named operator.

    Raises
    ------
    UnsupportedOperator
        `support.cu` has no kernel for the operator.

    Examples
    --------
    >>> reference_of("relu", {"shape": "2x3"}).output
    (2, 3)
    """
    name = lookup(operator).name
    p = normalize(name, params)
    if p.get("bias") or p.get("relu"):
        raise _unknown(f"{name} with bias or relu")
    if name in ("conv2d_nchw", "depthwise_conv2d_nchw"):
        high, wide = _windows(name, p)
        f, groups = (p["f"], p["groups"]) if "f" in p else (p["c"] * p["multiplier"], p["c"])
        own = p["c"] // groups
        sizes = (p["n"], p["c"], p["h"], p["w"], f, p["kh"], p["kw"], high.out, wide.out, *p["stride"],
                 *p["dilation"], high.before, wide.before, groups)  # fmt: skip
        output, terms = (p["n"], f, high.out, wide.out), own * p["kh"] * p["kw"]
        weight = (f, own, p["kh"], p["kw"]) if "f" in p else (p["c"], p["multiplier"], p["kh"], p["kw"])
        inputs = ((p["n"], p["c"], p["h"], p["w"]), weight)
        return Reference("conv2d", sizes, inputs, output, terms, 2 * prod(output) * terms)
    if name in ("matmul", "dense", "batch_matmul"):
        layout, batch = p.get("layout", "NT"), p.get("b", 1)
        m, n, k = p["m"], p["n"], p["k"]
        turned = (int(layout[0] == "T"), int(layout[1] == "T"))
        first = (batch,) if "b" in p else ()
        shapes = ((k, m) if turned[0] else (m, k), (n, k) if turned[1] else (k, n))
        output = (*first, m, n)
        own_sizes = (batch, m, n, k, *turned)
        return Reference(
            "matmul", own_sizes, tuple((*first, *s) for s in shapes), output, k, 2 * prod(output) * k
        )
    if name in ("avg_pool2d_nchw", "max_pool2d_nchw"):
        high, wide = _windows(name, p)
        mean = int(name.startswith("avg"))
        sizes = (p["h"], p["w"], p["kh"], p["kw"], high.out, wide.out, *p["stride"], *p["dilation"], high.before,
                 wide.before, mean)  # fmt: skip
        output, terms = (p["n"], p["c"], high.out, wide.out), p["kh"] * p["kw"]
        return Reference("pool2d", sizes, ((p["n"], p["c"], p["h"], p["w"]),), output, terms, prod(output) * terms)
    if name == "relu":
        shape = tuple(p["shape"])
        return Reference("relu", (), (shape,), shape, 1, prod(shape))
    if name == "reduce_sum":
        shape = tuple(p["shape"])
        axes = sorted(resolve_axes(name, shape, p["axis"]))
        if axes != list(range(len(shape) - len(axes), len(shape))):
            raise _unknown(f"reduce_sum over the axes {axes} of {len(shape)}")
        terms = prod(shape[a] for a in axes)
        kept = shape[: len(shape) - len(axes)]
        output = (*kept, *[1] * len(axes)) if p["keepdims"] else kept
        return Reference("sum_last", (terms,), (shape,), output, terms, prod(output) * terms)
    raise _unknown(name)


def spots(reference: Reference, seed: int = 7) -> list[int]:
    """Return the indices of the elements to recompute in Python: first, last, some between; fewer for long sums.

    For a graph, the indices of its known elements.
    """
    if reference.kernel == UNFUSED:
        return [index for index, _ in reference.known]
    count = max(1, min(ELEMENTS, MOST_TERMS // max(1, reference.terms)))
    return places(reference.elements, count, seed)


def places(elements: int, count: int, seed: int = 7) -> list[int]:
    """Return `count` indices in order: first, last and some between; if `count` is 1, a single one anywhere.

    Examples
    --------
    >>> places(100, 4)[0], places(100, 4)[-1]
    (0, 99)
    """
    last = elements - 1
    between = [int((value(i, seed) + 1) / 2 * last) for i in range(max(1, count - 2))]
    return between if count == 1 else sorted({0, last, *between[: count - 2]})


def disagreement(reference: Reference, dtype: str, elements: Mapping[int, bytes]) -> str:
    """Return how Python's elements differ from the card's, as text, or '' if they agree.

    Parameters
    ----------
    elements : mapping of int to bytes
        Bytes of elements of the output, by index.
    """
    graph = reference.kernel == UNFUSED
    scale, terms = max((abs(due) for _, due in reference.known), default=1.0), reference.terms if graph else 1
    for index, data in elements.items():
        due, got = reference.element(index), decoded(data, dtype)
        if not abs(got - due) <= allowed(dtype, scale if graph else max(1.0, abs(due)), terms):
            where = "by TVM's own kernels on a CPU" if graph else "in Python"
            return f"element {index} of the reference is {got!r} on the card and {due!r} {where}"
    return ""


def _unknown(what: str) -> UnsupportedOperator:
    return UnsupportedOperator(f"the kit has no reference for {what}", what, "add a kernel to support.cu")


def _windows(name: str, p: Mapping[str, Any]) -> tuple[Window, Window]:
    """Return the operator's sliding windows along the height and the width."""
    return (
        Window.fit(name, "h", p["h"], p["kh"], p["stride"][0], p["dilation"][0], p["padding"], 0),
        Window.fit(name, "w", p["w"], p["kw"], p["stride"][1], p["dilation"][1], p["padding"], 1),
    )


def _input(index: int, position: int) -> float:
    return value(index, seed_of(position))


def _place(index: int, extents: Sequence[int]) -> list[int]:
    """Return the coordinates of a flat index; the last dimension varies fastest."""
    place = []
    for extent in reversed(extents):
        index, at = divmod(index, extent)
        place.append(at)
    return place[::-1]


def _factors(reference: Reference, index: int) -> Iterator[tuple[float, float]]:
    """Yield the pairs of factors whose products are summed for one element."""
    d = reference.sizes
    if reference.kernel == "sum_last":
        for r in range(d[0]):
            yield _input(index * d[0] + r, 0), 1.0
    elif reference.kernel == "matmul":
        batch, m, n, k, left, right = d
        b, i, j = _place(index, (batch, m, n))
        for r in range(k):
            a = b * m * k + (r * m + i if left else i * k + r)
            yield _input(a, 0), _input(b * n * k + (j * k + r if right else r * n + j), 1)
    elif reference.kernel == "conv2d":
        n, c, h, w, f, kh, kw, oh, ow, sh, sw, dh, dw, top, left_pad, groups = d
        image, out, y, x = _place(index, (n, f, oh, ow))
        own = c // groups
        for r in range(own):
            for p in range(kh):
                for q in range(kw):
                    at, to = y * sh + p * dh - top, x * sw + q * dw - left_pad
                    if 0 <= at < h and 0 <= to < w:
                        channel = out // (f // groups) * own + r
                        weight = ((out * own + r) * kh + p) * kw + q
                        yield _input(((image * c + channel) * h + at) * w + to, 0), _input(weight, 1)


def _pooled(reference: Reference, index: int) -> float:
    h, w, kh, kw, oh, ow, sh, sw, dh, dw, top, left, mean = reference.sizes
    image, y, x = _place(index, (reference.elements // (oh * ow), oh, ow))
    places = ((y * sh + p * dh - top, x * sw + q * dw - left) for p in range(kh) for q in range(kw))
    seen = [_input((image * h + at) * w + to, 0) for at, to in places if 0 <= at < h and 0 <= to < w]
    return (sum(seen) / len(seen) if mean else max(seen)) if seen else 0.0


def _relu(reference: Reference, index: int) -> float:
    return max(0.0, _input(index, 0))
