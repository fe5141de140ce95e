"""Indices, conditions and trips that wrap around or round up, as no number of isl does: no wrong kernel is proven."""

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("islpy")
pytestmark = pytest.mark.te

if hasattr(tvm, "tirx"):
    from tvm.script import tirx as T

    script = T.prim_func(s_tir=True)
else:
    from tvm.script import tir as T

    script = T.prim_func

from roller_tvm.schedules.proofs import prove_lowered  # noqa: E402

SIZE, COUNT = 512, 48


def taken(where, at):
    """Return loops that give elements where a condition holds, and those 48 further on elsewhere."""

    @script
    def func(x: T.Buffer((SIZE,), "float32"), y: T.Buffer((COUNT,), "float32")):
        for i in range(COUNT):
            if where(i):
                y[i] = x[at(i)]
            else:
                y[i] = x[at(i) + COUNT]

    return func


def launched(where, at):
    """Return the same by blocks and threads."""

    @script
    def func(x: T.Buffer((SIZE,), "float32"), y: T.Buffer((COUNT,), "float32")):
        b = T.launch_thread("blockIdx.x", 4)
        t = T.launch_thread("threadIdx.x", 12)
        if where(b * 12 + t):
            y[b * 12 + t] = x[at(b * 12 + t)]
        else:
            y[b * 12 + t] = x[at(b * 12 + t) + COUNT]

    return func


def shared(where, at):
    """Return the same by way of a tile."""

    @script
    def of_buffer(x: T.Buffer((SIZE,), "float32"), y: T.Buffer((COUNT,), "float32")):
        s = T.alloc_buffer((COUNT,), scope="shared")
        t = T.launch_thread("threadIdx.x", 16)
        for k in range(3):
            if where(k * 16 + t):
                s[k * 16 + t] = x[at(k * 16 + t)]
            else:
                s[k * 16 + t] = x[at(k * 16 + t) + COUNT]
        T.evaluate(T.tvm_storage_sync("shared"))
        for k in range(3):
            y[k * 16 + t] = s[k * 16 + t]

    if hasattr(tvm, "tirx"):
        return of_buffer

    @script
    def of_memory(x: T.Buffer((SIZE,), "float32"), y: T.Buffer((COUNT,), "float32")):
        t = T.launch_thread("threadIdx.x", 16)
        data = T.allocate([COUNT], "float32", scope="shared")
        s = T.Buffer((COUNT,), data=data, scope="shared")
        for k in range(3):
            if where(k * 16 + t):
                s[k * 16 + t] = x[at(k * 16 + t)]
            else:
                s[k * 16 + t] = x[at(k * 16 + t) + COUNT]
        T.evaluate(T.tvm_storage_sync("shared"))
        for k in range(3):
            y[k * 16 + t] = s[k * 16 + t]

    return of_memory


def counted(trips):
    """Return sums of so many elements."""

    @script
    def func(x: T.Buffer((SIZE,), "float32"), y: T.Buffer((COUNT,), "float32")):
        for i in range(COUNT):
            y[i] = T.float32(0)
            for k in range(trips(i)):
                y[i] = y[i] + x[k]

    return func


def counted_by_threads(trips):
    @script
    def func(x: T.Buffer((SIZE,), "float32"), y: T.Buffer((COUNT,), "float32")):
        b = T.launch_thread("blockIdx.x", 4)
        t = T.launch_thread("threadIdx.x", 12)
        y[b * 12 + t] = T.float32(0)
        for k in range(trips(b * 12 + t)):
            y[b * 12 + t] = y[b * 12 + t] + x[k]

    return func


def to(dtype, value):
    return T.Cast(dtype, value)


def back(dtype, value):
    return T.Cast("int32", T.Cast(dtype, value))


#: What a machine computes, and the whole number that it would be without wrapping, by the floor of quotients.
NUMBERS = {
    "a quotient below 0": (lambda i: T.truncdiv(i - 24, 12) + 2, lambda i: i // 12),
    "a rest below 0": (lambda i: T.truncmod(i - 24, 12) + 12, lambda i: i % 12 + 12),
    "quotients of quotients": (lambda i: T.truncdiv(T.truncdiv(i - 24, 4), 3) + 2, lambda i: i // 12),
    "a rest of a quotient": (lambda i: T.truncmod(T.truncdiv(i - 24, 4), 3) + 6, lambda i: i // 4 % 3 + 6),
    "8 bits": (lambda i: back("uint8", i * 8), lambda i: i * 8),
    "7 bits": (lambda i: back("int8", i * 4) + 128, lambda i: i * 4 + 128),
    "4 bits": (lambda i: back("int4", i) + 8, lambda i: i + 8),
    "16 bits": (lambda i: back("int16", i * 1024) // 1024 + 32, lambda i: i + 32),
    "a product of 8 bits": (lambda i: to("int32", to("int8", i) * T.int8(4)) + 128, lambda i: i * 4 + 128),
    "a product of 32 bits": (lambda i: (i * 100000000) // 100000000 + 48, lambda i: i + 48),
    "a cast to 32 bits": (
        lambda i: to("int32", to("int64", i) * T.int64(100000000)) // 100000000 + 48, lambda i: i + 48
    ),
    "bits shifted out": (lambda i: T.shift_right(T.shift_left(i, 27), 27) + 48, lambda i: i + 48),
}  # fmt: skip
#: The same of conditions.
CONDITIONS = {
    "a quotient below 0": (lambda i: T.truncdiv(i - 8, 16) >= 0, lambda i: i >= 8),
    "a rest below 0": (lambda i: T.truncmod(i - 24, 16) < 8, lambda i: (i - 24) % 16 < 8),
    "no sign": (lambda i: to("uint32", i) - T.uint32(8) < T.uint32(8), lambda i: i < 16),
    "8 bits": (lambda i: to("uint8", i * 8) < T.uint8(100), lambda i: i * 8 < 100),
    "32 bits": (lambda i: i * 100000000 < 2000000000, lambda i: i < 20),
    "a cast to 32 bits": (lambda i: to("int32", to("int64", i) * T.int64(100000000)) < 2000000000, lambda i: i < 20),
}
TRIPS = {name: NUMBERS[name] for name in ("a quotient below 0", "a rest below 0", "8 bits", "7 bits")}
FORMS = [taken, launched, shared]


def answer(func, reference):
    return prove_lowered(func, reference).answer


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_indices(form, name):
    machine, whole = NUMBERS[name]
    always = lambda i: i >= 0  # noqa: E731
    assert answer(form(always, machine), taken(always, whole)) != "proven"
    assert answer(form(always, whole), taken(always, whole)) == "proven"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CONDITIONS)
def test_numbers_of_conditions(form, name):
    machine, whole = CONDITIONS[name]
    same = lambda i: i  # noqa: E731
    assert answer(form(machine, same), taken(whole, same)) != "proven"
    assert answer(form(whole, same), taken(whole, same)) == "proven"


@pytest.mark.parametrize("form", [counted, counted_by_threads])
@pytest.mark.parametrize("name", TRIPS)
def test_numbers_of_trips(form, name):
    machine, whole = TRIPS[name]
    assert answer(form(machine), counted(whole)) != "proven"
    assert answer(form(whole), counted(whole)) != "refuted"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("index", [
    lambda i: T.truncdiv(i, 12), lambda i: T.truncmod(i, 12), lambda i: back("uint8", i), lambda i: back("int8", i * 2),
    lambda i: to("int32", to("int64", i) * T.int64(2)), lambda i: T.shift_right(T.shift_left(i, 3), 2),
    lambda i: T.truncdiv(i - 24, 12) + 2,
], ids=["quotient", "rest", "8 bits", "7 bits", "64 bits", "shifted", "below 0"])  # fmt: skip
def test_numbers_that_are_whole_are_proven(form, index):
    always = lambda i: i >= 0  # noqa: E731
    assert answer(form(always, index), taken(always, index)) == "proven"
