"""Fused kernels in OpenCL C, executed by PoCL: blocks of all widths side by side; what waits is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from roller_check.pocl import OpenClFunction
from roller_tvm.codegen.host_code import BufferSpec, HostCode, Launch
from roller_tvm.device import load_device
from roller_tvm.rammer import DataFlowGraph, Dependences, Phase, RKernel, ROperator, plan_graph
from roller_tvm.rammer.cuda_functions import CannotFuse
from roller_tvm.rammer.fused_kernel import FusedKernel, OperatorCode, fuse
from roller_tvm.rammer.opencl_functions import OPENCL, opencl_function
from tests.rammer.checked import check_program

DEVICE = replace(load_device("v100"), name="small", units=3)
HEAD = "#ifdef cl_khr_fp64\n#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n#endif\n\n// Function: NAME\n"
SIZE = 1536
ROW = "convert_int(get_local_id(0))"


def bodies(threads: int) -> dict[str, str]:
    """What operators do with each block's `threads` elements of x, written as TVM writes OpenCL."""
    at = f"((convert_int(get_group_id(0))) * {threads}) + ({ROW})"
    steps = [2**n for n in range(threads.bit_length() - 1)][::-1]
    summed = "".join(f"""
  if (({ROW}) < {step}) {{
    ((volatile __local float*)red)[({ROW})] = (((volatile __local float*)red)[({ROW})] + ((volatile __local float*)red)[(({ROW}) + {step})]);
  }}
  barrier(CLK_LOCAL_MEM_FENCE);""" for step in steps)  # noqa: E501
    return {
        "plain": f"  out[({at})] = (x[({at})] + 1.000000e+00f);\n",
        "turned": f"""
  __local float turned[{threads}];
  int mine = ({ROW});
  turned[mine] = x[({at})];
  barrier(CLK_LOCAL_MEM_FENCE);
  out[({at})] = turned[({threads - 1} - mine)];
""",
        # One statement that reads and writes a place: threads that go along must not do it again.
        "summed": f"""
  __local float red[{threads}];
  float kept[1];
  kept[0] = x[({at})];
  ((volatile __local float*)red)[({ROW})] = kept[0];
  barrier(CLK_LOCAL_MEM_FENCE);{summed}
  out[({at})] = ((volatile __local float*)red)[0];
""",
        # The last thread counts in memory that all see.
        "counted": f"""
  __local int count[1];
  if (({ROW}) == 0) {{
    count[0] = 0;
  }}
  barrier(CLK_LOCAL_MEM_FENCE);
  if (({ROW}) == {threads - 1}) {{
    count[0] += 1;
  }}
  barrier(CLK_LOCAL_MEM_FENCE);
  out[({at})] = (x[({at})] * convert_float(count[0]));
""",
        "wide": f"""
  __local float wide[{4 * threads}];
  for (int k = 0; k < 2; ++k) {{
    barrier(CLK_LOCAL_MEM_FENCE);
    vstore2(vload2(0, x + ((({at}) / 2) * 2)), 0, wide + (({ROW}) * 4));
    barrier(CLK_LOCAL_MEM_FENCE);
  }}
  out[({at})] = wide[((({ROW}) * 4) + (({ROW}) & 1))];
""",
    }


def computed(kind: str, threads: int, x: np.ndarray) -> np.ndarray:
    blocks = x.reshape(-1, threads)
    return {
        "plain": blocks + 1, "turned": blocks[:, ::-1], "counted": blocks, "wide": blocks,
        "summed": np.broadcast_to(blocks.sum(1, keepdims=True), blocks.shape),
    }[kind].reshape(-1)  # fmt: skip


def operator(name: str, kind: str, threads: int, read: str = "x", body: str = "") -> tuple[ROperator, OperatorCode]:
    kernel, blocks = f"{name}_kernel", SIZE // threads
    head = f"__kernel void {kernel}(__global float* restrict out, __global float* restrict x)"
    source = f"{HEAD.replace('NAME', kernel)}{head};\n{head} {{\n{body or bodies(threads)[kind]}}}\n"
    specs = tuple(BufferSpec(n, (SIZE,), "float32") for n in ("x", "out"))
    host = HostCode(specs, (), (Launch(kernel, ("out", "x"), (blocks, 1, 1), (threads, 1, 1)),))
    phase = Phase(blocks, 2e-7, 5e-8, threads, 32, 4 * threads)
    made = ROperator(name, (RKernel("k", (phase,), 4e-6),), () if read == "x" else (read,))
    return made, OperatorCode(source, host, (read, name))


def fused(made: Sequence[tuple[ROperator, OperatorCode]], policy: str = "horizontal") -> FusedKernel:
    graph = DataFlowGraph(tuple(o for o, _ in made))
    (part,) = plan_graph(graph, DEVICE, policy).parts
    assert part.program is not None
    check_program(part.program, Dependences(graph))
    return fuse("plan0", part.program, {o.name: c for o, c in made}, DEVICE, dialect=OPENCL)


@pytest.mark.parametrize(("widths", "along"), [((64, 64, 64, 64, 64), False), ((32, 64, 16, 128, 48), True)])
def test_operators_side_by_side(pocl: None, widths: tuple[int, ...], along: bool) -> None:
    """Of as many threads, and of others: those beyond an operator's own go along to its barriers, and store nothing."""
    kinds = dict(zip(("plain", "summed", "counted", "turned", "wide"), widths, strict=True))
    kernel = fused([operator(kind, kind, threads) for kind, threads in kinds.items()])
    assert kernel.resident == 0 and ("if (rammer_live)" in kernel.source) == along
    (launch,) = kernel.host.launches
    assert launch.block == (max(widths), 1, 1) and launch.grid[0] == sum(SIZE // w for w in widths)
    x = np.random.default_rng(0).integers(0, 100, SIZE).astype("float32")
    names = [p.name for p in kernel.host.parameters if isinstance(p, BufferSpec)]
    results = iter(OpenClFunction(kernel.source, kernel.host).run([x if n == "x" else None for n in names]))
    for name in names:
        if name != "x":
            np.testing.assert_array_equal(next(results), computed(name, kinds[name], x), err_msg=name)


def test_without_the_guard_it_would_be_wrong(pocl: None) -> None:
    """What the guard is for: the test above sees it where it is missing."""
    kernel = fused([operator("summed", "summed", 32), operator("plain", "plain", 128)])
    assert kernel.source.count("if (rammer_live) ") >= 7
    source = kernel.source.replace("if (rammer_live) ", "")
    x = np.ones(SIZE, "float32")
    names = [p.name for p in kernel.host.parameters if isinstance(p, BufferSpec)]
    got = OpenClFunction(source, kernel.host).run([x if n == "x" else None for n in names])
    assert (got[names.index("summed") - 1] != 32).any()


def test_plans_that_wait_are_refused() -> None:
    made = [operator("a", "turned", 64), operator("b", "turned", 64, read="a")]
    with pytest.raises(CannotFuse, match="plan 'plan0': its blocks wait for one another, and OpenCL C"):
        fused(made, "wavefront")
    apart = plan_graph(DataFlowGraph(tuple(o for o, _ in made)), DEVICE, "horizontal")
    assert [part.program for part in apart.parts] == [None, None]


@pytest.mark.parametrize(("body", "why"), [
    ("  __global float* p = (out + 4);\n  p[0] = 1.0f;\n", r"__global float\* p = \(out \+ 4\)"),
    ("  int was = atomic_add(out, 1);\n", "atomic_add"),
    ("  if (x[0] < 0) {\n    return;\n  }\n", "'return'"),
    ("  prefetch(x, 4);\n", "prefetch"),
    ("  float both[2] = {x[0], x[1]};\n", r"float both\[2\] ="),
])  # fmt: skip
def test_statements_that_are_not_understood_are_named(body: str, why: str) -> None:
    """Where other threads go along; with a block of its own an operator may say what it likes."""
    whole = f"{body}  barrier(CLK_LOCAL_MEM_FENCE);\n"
    source = f"__kernel void f(__global float* restrict out, __global float* restrict x) {{\n{whole}}}\n"
    with pytest.raises(CannotFuse, match=f"kernel 'f': the block's other threads would have to go along with .*{why}"):
        opencl_function(source, "f", (32, 1, 1), (4, 1, 1), 64)
    assert opencl_function(source, "f", (64, 1, 1), (4, 1, 1), 64).lanes == 64


def test_what_is_strange_is_named() -> None:
    for text in ("int n = get_global_size(0);", "__local float shared[n];"):
        source = f"__kernel void f(__global float* restrict out) {{ {text} }}"
        with pytest.raises(CannotFuse, match=r"kernel 'f': it contains '(get_global_size|__local float shared)'"):
            opencl_function(source, "f", (32, 1, 1), (4, 1, 1), 32)
