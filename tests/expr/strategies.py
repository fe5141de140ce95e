"""Random accesses and tiles for the property tests."""

from hypothesis import strategies as st

from roller_tvm.expr import Index

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
