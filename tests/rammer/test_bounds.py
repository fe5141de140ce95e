"""Launch bounds of kernels that wait: enough room by any compiler, and none by which the compiler at hand spills."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller_tvm.codegen import Compiler, KernelResources
from roller_tvm.device import load_device
from roller_tvm.errors import ToolchainError
from roller_tvm.micro_perf.registers import register_cap
from roller_tvm.rammer import without_spills as bounds
from roller_tvm.rammer.cuda_functions import CannotFuse
from roller_tvm.rammer.fused_kernel import FusedKernel
from roller_tvm.rammer.launch_bounds import Bounds, bounds_of, together
from roller_tvm.rammer.without_spills import bounded, without_spills

from .test_code import fused

A100 = load_device("a100")


@pytest.mark.parametrize(("threads", "blocks", "right"), [
    (1, 0, True), (1, 1, True), (0, 0, False), (0, 1, False), (1, -1, False),
])  # fmt: skip
def test_bounds_have_threads_and_may_have_blocks(threads: int, blocks: int, right: bool) -> None:
    if right:
        assert str(Bounds(threads, blocks)) == ("1, 1" if blocks else "1")
        return
    with pytest.raises(ValueError, match=f"need threads .got {threads} and {blocks} blocks"):
        Bounds(threads, blocks)


def waiting() -> FusedKernel:
    kernel, _ = fused(("a", ["x"], 64, True), ("b", ["a"], 128, True), ("c", ["a", "b"], 32, False))
    assert kernel.resident
    return kernel


@given(st.sampled_from(["a100", "v100", "h200", "t4"]), st.integers(1, 1024), st.integers(1, 16), st.booleans())
def test_the_first_bounds_leave_room_for_all_blocks(name: str, threads: int, resident: int, larger: bool) -> None:
    spec = load_device(name)
    limits = spec.limits
    if together(spec, threads, resident) > limits.max_threads_per_unit:
        return
    first, *others = bounds_of(spec, threads, resident, larger)
    assert first.threads >= threads and all(b.threads >= threads for b in others)
    # What a compiler may take at most, of one large block or of several.
    registers = register_cap(spec, together(spec, first.threads, max(1, first.blocks)))
    assert registers
    # Each scheduler has its part of the register file, and its part of the warps.
    a_warp = -(-registers * spec.vector_width // limits.register_granularity) * limits.register_granularity
    a_scheduler = limits.registers_per_unit // limits.schedulers_per_unit // a_warp
    assert a_scheduler * limits.schedulers_per_unit >= resident * -(-threads // spec.vector_width)


def test_a_kernel_that_waits_has_the_bound_of_one_large_block() -> None:
    """By blocks ptxas fills their whole share of the register file, and spills what is left over."""
    kernel = waiting()
    every = 128 * kernel.resident
    if every < 1024:
        assert kernel.bounds == Bounds(every) and f"__launch_bounds__({every}) plan0(" in kernel.source
    else:
        assert kernel.bounds == Bounds(128, kernel.resident)
    few = bounds_of(A100, 128, 5)[0]
    assert f"__launch_bounds__({few}) plan0(" in bounded(kernel, few).source
    none, _ = fused(("a", ["x"], 64, True), ("b", ["x"], 128, True))
    assert none.bounds is None and "__launch_bounds__(128) plan0(" in none.source


def compiler(monkeypatch: pytest.MonkeyPatch, *taken: KernelResources) -> list[str]:
    """A compiler by which a kernel takes one after the other; what it is given."""
    given: list[str] = []
    results = iter(taken)
    monkeypatch.setattr(bounds, "find_compilers", lambda: (Compiler("nvcc", (13, 0), "nvcc", ("sm_70", "sm_80")),))
    monkeypatch.setattr(bounds, "compile_cuda", lambda source, *more: given.append(source + str(more)))
    monkeypatch.setattr(bounds, "kernel_resources", lambda _: {"plan0": next(results)})
    return given


def small(resident: int = 5) -> FusedKernel:
    return bounded(replace(waiting(), resident=resident), bounds_of(A100, 128, resident)[0])


def test_bounds_by_which_it_spills_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    given = compiler(monkeypatch, KernelResources(32, 8, 0), KernelResources(104, 0, 0), KernelResources(56, 0, 0))
    made = without_spills(small(), A100, "sm_80")
    # 640 spills, '128, 5' takes more registers than five blocks have, 128 alone is seen to take few enough.
    assert made.bounds == Bounds(128) and made.compiled == KernelResources(56, 0, 0)
    assert [f"__launch_bounds__({b})" in s for b, s in zip(bounds_of(A100, 128, 5), given, strict=True)] == [True] * 3


def test_where_no_bound_may_be_larger_than_a_block_the_first_is_by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM's own text names the threads of a launch: what it promises without blocks is seen of this compiler alone."""
    given = compiler(monkeypatch, KernelResources(96, 0, 0))
    made = without_spills(small(), A100, "sm_80", text=lambda kernel: kernel.source, options=("--use_fast_math",))
    assert made.bounds == Bounds(128, 5) and len(given) == 1 and "('--use_fast_math',)" in given[0]


def test_a_compiler_that_gives_up_does_not_bring_back_bounds_that_spill(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(monkeypatch, KernelResources(96, 8, 0, spill_bytes=16))
    seen = iter([None])

    def once(*_: object) -> None:
        if next(seen, "over") == "over":
            raise ToolchainError("it takes too long")

    monkeypatch.setattr(bounds, "compile_cuda", once)
    with pytest.raises(CannotFuse, match="8 B local.*it takes too long"):
        without_spills(small(), A100, "sm_80")


def test_what_spills_by_all_bounds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(monkeypatch, *[KernelResources(96, 8, 0, spill_bytes=16)] * 3)
    told = r"'plan0' for sm_80: it spills.*\(640\): 96 registers, 8 B local.*\(128, 5\).*\(128\)"
    with pytest.raises(CannotFuse, match=told):
        without_spills(small(), A100, "sm_80")


def test_without_a_compiler_the_first_bounds_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    given = compiler(monkeypatch)
    assert without_spills(small(), A100, "sm_90") == small() and not given  # this one knows no sm_90
    free = replace(small(), resident=0)
    assert without_spills(free, A100, "sm_80") is free and not given  # nothing waits
    monkeypatch.setattr(bounds, "find_compilers", lambda: ())
    assert without_spills(small(), A100, "sm_80") == small()
