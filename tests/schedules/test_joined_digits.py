"""Copies by several elements, whose rests are digits of the number that goes along the tile: ``2*(t % 9) + u``."""

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("islpy")
pytestmark = pytest.mark.relax
if not hasattr(tvm, "tirx"):
    pytest.skip("written in the Relax line's script", allow_module_level=True)

from tvm.script import tirx as T  # noqa: E402

from roller_tvm.schedules.proofs import prove_lowered  # noqa: E402
from roller_tvm.schedules.proofs.read import read_kernel  # noqa: E402
from roller_tvm.schedules.proofs.sums import Part, Sum  # noqa: E402


@T.prim_func(s_tir=True)
def laid_out(x: T.Buffer((64, 2, 3, 3), "float32"), y: T.Buffer((64, 18), "float32")):
    for i, j in T.grid(64, 18):
        y[i, j] = x[i, j // 9, j % 9 // 3, j % 3]


def by_several(
    count=2,
    place=lambda t, u: t % 9 * 2 + u,
    window=lambda t, u: (t % 9 * 2 + u) // 9,
    row=lambda t, u: (t * 2 + u) % 9 // 3,
    column=lambda t, u: (t * 2 + u) % 3,
):
    """Return the same by way of tiles of 16 rows, which threads copy by pairs."""

    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(x: T.Buffer((64, 2, 3, 3), "float32"), y: T.Buffer((64, 18), "float32")):
        b = T.launch_thread("blockIdx.x", 4)
        a = T.alloc_buffer((16, 18), "float32", scope="shared")
        t = T.launch_thread("threadIdx.x", 144)
        for u in range(count):
            a[t // 9, place(t, u)] = x[b * 16 + t // 9, window(t, u), row(t, u), column(t, u)]
        T.evaluate(T.tvm_storage_sync("shared"))
        for k in range(2):
            y[b * 16 + (k * 144 + t) // 18, (k * 144 + t) % 18] = a[(k * 144 + t) // 18, (k * 144 + t) % 18]

    return func


def test_a_copy_by_pairs_is_one_number():
    copy = read_kernel(by_several()).statements[0]
    assert [dim.stride for fold in copy.folds for dim in fold.dims] == [18, 9, 3, 1]
    assert prove_lowered(by_several(), laid_out).answer == "proven"


@pytest.mark.parametrize("right", [
    by_several(place=lambda t, u: t % 9 * 2 + 1 - u, window=lambda t, u: (t % 9 * 2 + 1 - u) // 9,
               row=lambda t, u: (t * 2 + 1 - u) % 9 // 3, column=lambda t, u: (t * 2 + 1 - u) % 3),
    by_several(window=lambda t, u: (t * 2 + u) % 18 // 9, row=lambda t, u: (t % 9 * 2 + u) % 9 // 3),
], ids=["the second first", "rests of the whole"])  # fmt: skip
def test_right_copies_are_not_refuted(right):
    assert prove_lowered(right, laid_out).answer != "refuted"


@pytest.mark.parametrize("wrong", [
    by_several(3), by_several(1), by_several(place=lambda t, u: t % 9 + u * 9),
    by_several(place=lambda t, u: t % 8 * 2 + u), by_several(window=lambda t, u: (t % 9 * 2 + u) // 10),
    by_several(window=lambda t, u: (t % 8 * 2 + u) // 9),
    by_several(window=lambda t, u: (t % 9 + u) // 9), by_several(window=lambda t, u: (t % 9 * 2 + 3 * u) // 9),
    by_several(row=lambda t, u: (t * 2 + u) % 9 // 4), by_several(column=lambda t, u: (t * 2 + 2 * u) % 3),
    by_several(3, window=lambda t, u: T.min((t % 9 * 2 + u) // 9, 1)),
], ids=["three", "one", "other places", "rows of eight", "windows of ten", "windows of eight", "steps of one",
        "beyond a step", "rows of four", "other columns", "three, within bounds"])  # fmt: skip
def test_wrong_copies_are_not_proven(wrong):
    assert prove_lowered(wrong, laid_out).answer != "proven"


def value(found, values):
    """Return the value of a sum."""
    total = found.start
    for part, factor in found.parts.items():
        base = sum(by * values[var] for var, by in part.base)
        total += factor * ((base % part.high if part.high else base) // part.low)
    return total


@pytest.mark.parametrize("step", [2, 3, 4])
@pytest.mark.parametrize("high", [1, 3, 4])
def test_a_joined_sum_has_the_same_values(step, high):
    x, y, z = 1, 2, 3
    rest = {Part(((x, 1), (y, -2)), 1, high): step, Part(((z, 1),)): 1}
    for extent in range(1, 6):
        plain = Sum(rest, step)
        joined = plain.joined({z: extent})
        assert (joined.parts != plain.parts) == (extent <= step)
        quotients = [(plain.divided(step, of_rest, {z: extent}), of_rest) for of_rest in (False, True)]
        for values in ({x: a, y: b, z: c} for a in range(-3, 9) for b in range(-2, 3) for c in range(extent)):
            whole = value(plain, values)
            assert value(joined, values) == whole
            for found, of_rest in quotients:
                assert found is None or value(found, values) == (whole % step if of_rest else whole // step)
