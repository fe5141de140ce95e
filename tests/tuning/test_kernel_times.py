"""Observed calls as a table of kernels."""

import pytest

from roller_tvm.tuning.kernel_times import Call, KernelTime, kernel_table, kernel_times

SMALL, LARGE = ("1x8", "1x4"), ("1x16", "1x4")


def test_calls_alike_are_one_row_and_the_median_of_the_runs_counts():
    first, large = Call("conv", SMALL, 1e-6), Call("conv", LARGE, 2e-6)
    runs = [[first, Call("conv", SMALL, took), large] for took in (1e-6, 9e-6, 3e-6)]
    rows = kernel_times(runs)
    assert [(r.arguments, r.calls) for r in rows] == [(SMALL, 2), (LARGE, 1)]
    assert [r.seconds for r in rows] == pytest.approx([4e-6, 2e-6])


def test_a_kernel_that_few_runs_call_took_no_time_in_the_others():
    runs = [[Call("always", SMALL, 1e-6)], [Call("always", SMALL, 1e-6), Call("once", SMALL, 5e-6)], []]
    assert [(r.name, r.calls, r.seconds) for r in kernel_times(runs)] == [("always", 1, 1e-6), ("once", 1, 0)]
    assert kernel_times([]) == [] and kernel_times([[]]) == []


def test_the_table_sums_up():
    many = tuple(f"{n}x1000000x1000000" for n in range(9))
    rows = [KernelTime("conv", many, 3, 6e-6), KernelTime("relu", SMALL, 1, 2e-6)]
    head, conv, relu, last = kernel_table(rows).splitlines()
    assert head.split() == ["us", "share", "all", "calls", "kernel", "tensors"]
    assert conv.split()[:5] == ["6.0", "75.0%", "75.0%", "3", "conv"] and conv.endswith("...")
    assert relu.split() == ["2.0", "25.0%", "100.0%", "1", "relu", "1x8,", "1x4"]
    assert last.split() == ["8.0", "4", "in", "kernels"]
    assert kernel_table([]).splitlines()[-1].split() == ["0.0", "0", "in", "kernels"]
