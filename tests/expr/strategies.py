"""Random accesses and tiles for the property tests."""

from hypothesis import strategies as st

from roller_tvm.ir import Index
from roller_tvm.ir.operators import operator

AXES = ("a", "b", "c", "d")


def tiles(largest: int = 6) -> st.SearchStrategy[dict[str, int]]:
    return st.fixed_dictionaries({axis: st.integers(1, largest) for axis in AXES})


def indices(low: int = -4, high: int = 7) -> st.SearchStrategy[Index]:
    return st.builds(
        Index.of,
        st.dictionaries(st.sampled_from(AXES), st.integers(low, high), max_size=3),
        st.integers(-3, 3),
    )


def maps(dimensions: int = 3) -> st.SearchStrategy[list[Index]]:
    return st.lists(indices(), min_size=1, max_size=dimensions)


# Far larger than any tile above touches: the shape must not clip.
def interior(accesses: list[Index]) -> list[int]:
    return [10_000] * len(accesses)


# -- whole operators -----------------------------------------------------------------------------

small = st.sampled_from([1, 1, 2, 3, 4, 5, 7, 8])


@st.composite
def pointwise(draw, extents=small):
    """relu, add with broadcasting, transpose, softmax or a reduction, of up to four dimensions."""
    shape = tuple(draw(st.lists(extents, min_size=1, max_size=4)))
    name = draw(st.sampled_from(["relu", "add", "transpose", "softmax", "reduce_sum", "reduce_max"]))
    if name == "add":
        tail = shape[draw(st.integers(0, len(shape) - 1)):]
        return operator(name, shape=shape, other=tuple(draw(st.sampled_from([1, e])) for e in tail))
    if name == "transpose":
        return operator(name, shape=shape, perm=tuple(draw(st.permutations(range(len(shape))))))
    if name == "softmax":
        return operator(name, shape=shape, axis=(draw(st.integers(0, len(shape) - 1)),))
    if name == "relu":
        return operator(name, shape=shape)
    axis = draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    return operator(name, shape=shape, axis=tuple(axis), keepdims=draw(st.booleans()))


@st.composite
def pools(draw, extents=small):
    sides = st.integers(1, 9)
    kind = draw(st.sampled_from(["avg_pool2d_nchw", "max_pool2d_nchw", "global_avg_pool2d_nchw"]))
    n, c, h, w = draw(extents), draw(extents), draw(sides), draw(sides)
    if kind.startswith("global"):
        return operator(kind, n=n, c=c, h=h, w=w)
    kh, kw = draw(st.integers(1, min(3, h))), draw(st.integers(1, min(3, w)))
    return operator(kind, n=n, c=c, h=h, w=w, kh=kh, kw=kw, stride=draw(st.integers(1, 2)),
                    padding=draw(st.sampled_from(["VALID", "SAME"])))  # fmt: skip


@st.composite
def products(draw, extents=small):
    layout = draw(st.sampled_from(["NN", "NT", "TN"]))
    params = dict(m=draw(extents), n=draw(extents), k=draw(extents), layout=layout)
    if draw(st.booleans()):
        return operator("batch_matmul", b=draw(extents), **params)
    return operator("matmul", bias=draw(st.booleans()), relu=draw(st.booleans()), **params)


@st.composite
def convolutions(draw, extents=small):
    sides = st.integers(3, 9)
    kind, layout = draw(st.sampled_from(["", "depthwise_"])), draw(st.sampled_from(["nchw", "nhwc"]))
    name = f"{kind}conv2d_{layout}"
    params = dict(n=draw(extents), c=draw(extents), h=draw(sides), w=draw(sides), kh=draw(st.integers(1, 3)),
                  kw=draw(st.integers(1, 3)), stride=draw(st.integers(1, 2)),
                  padding=draw(st.sampled_from(["VALID", "SAME"])), bias=draw(st.booleans()),
                  relu=draw(st.booleans()))  # fmt: skip
    if not kind:
        params["f"] = draw(extents)
    return operator(name, **params)


def operators(extents=small) -> st.SearchStrategy:
    """Any operator of any class."""
    return st.one_of(pointwise(extents), pools(extents), products(extents), convolutions(extents))
