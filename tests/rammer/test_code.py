"""Fused kernels executed by the emulator, all blocks interleaved, against the operators one by one."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from roller_check import Function, KernelFault, compile_source
from roller_tvm.codegen.host_code import BufferSpec, HostCode, Launch
from roller_tvm.device import load_device
from roller_tvm.rammer import (
    DataFlowGraph,
    Dependences,
    Phase,
    ProgramBuilder,
    RKernel,
    ROperator,
    RTask,
    TaskProgram,
    VDevice,
    plan_graph,
)  # fmt: skip
from roller_tvm.rammer.cuda_functions import _SIZES, CannotFuse, element_bytes
from roller_tvm.rammer.fused_kernel import FusedKernel, OperatorCode, fuse
from tests.rammer.checked import check_program

DEVICE = replace(load_device("v100"), name="small", units=3)
HEAD = '#ifdef _WIN32\n  using uint = unsigned int;\n#endif\n\n#include <cuda_fp16.h>\n'
SIZE = 1536


def operator(name: str, inputs: list[str], threads: int, sync: bool = True) -> tuple[ROperator, OperatorCode]:
    """out[i] = 1 + the sum of the inputs, each block's part in reverse, by way of shared memory if `sync`."""
    blocks = SIZE // threads
    names = [f"p{n}" for n in range(len(inputs) or 1)]
    total = " + ".join(f"{p}[((int)blockIdx.x) * {threads} + ((int)threadIdx.x)]" for p in names)
    turned = f"(((int)blockIdx.x) * {threads}) + {threads - 1} - ((int)threadIdx.x)"
    body = f"""
  __shared__ float turned_shared[{threads}];
  turned_shared[((int)threadIdx.x)] = {total} + 1.0f;
  __syncthreads();
  out[((int)blockIdx.x) * {threads} + ((int)threadIdx.x)] = turned_shared[{threads - 1} - ((int)threadIdx.x)];
""" if sync else f"  out[{turned}] = {total} + 1.0f;\n"  # fmt: skip
    parameters = ", ".join(["float* __restrict__ out", *(f"float* __restrict__ {p}" for p in names)])
    kernel = f"{name}_kernel"
    head = f'extern "C" __global__ void __launch_bounds__({threads}) {kernel}({parameters})'
    other = 'extern "C" __global__ void another_kernel(float* q)'  # declared first, as a split reduction's two are
    source = f"{HEAD}{other};\n{head};\n{other} {{ q[0] = 0.0f; }}\n{head} {{{body}}}\n"
    specs = tuple(BufferSpec(n, (SIZE,), "float32") for n in (*names, "out"))
    host = HostCode(specs, (), (Launch(kernel, ("out", *names), (blocks, 1, 1), (threads, 1, 1)),))
    phase = Phase(blocks, 2e-6, 5e-7, threads, 32, 4 * threads if sync else 0)
    made = ROperator(name, (RKernel("k", (phase,), 4e-6),), tuple(i for i in inputs if i != "x"))
    return made, OperatorCode(source, host, (*(inputs or ["x"]), name))


def fused(*operators: tuple[str, list[str], int, bool]) -> tuple[FusedKernel, TaskProgram]:
    made = [operator(*o) for o in operators]
    graph = DataFlowGraph(tuple(o for o, _ in made))
    (part,) = plan_graph(graph, DEVICE, "wavefront").parts
    assert part.program is not None
    check_program(part.program, Dependences(graph))
    return fuse("plan0", part.program, {o.name: c for o, c in made}, DEVICE), part.program


def run(kernel: FusedKernel, x: np.ndarray, times: int = 1) -> dict[str, np.ndarray]:
    function = Function.of(compile_source(kernel.source), kernel.host)
    for _ in range(times):
        arrays = [x if p.name == "x" else None for p in function.parameters]
        results = iter(function.run(arrays))
    return {p.name: next(results) for p in function.parameters if p.name != "x"}


def reference(operators: tuple[tuple[str, list[str], int, bool], ...], x: np.ndarray) -> dict[str, np.ndarray]:
    values = {"x": x}
    for name, inputs, threads, _ in operators:
        total = sum(values[i] for i in inputs or ["x"]) + np.float32(1)
        values[name] = total.reshape(-1, threads)[:, ::-1].reshape(-1)
    return values


def check(*operators: tuple[str, list[str], int, bool]) -> FusedKernel:
    kernel, _ = fused(*operators)
    x = np.random.default_rng(0).integers(0, 100, SIZE).astype("float32")
    expected = reference(operators, x)
    for name, value in run(kernel, x, times=3).items():
        np.testing.assert_array_equal(value, expected[name])
    return kernel


def test_a_graph_with_barriers_launched_three_times() -> None:
    """Blocks of 32 to 256 threads, with and without barriers of their own; the counters reset themselves."""
    kernel = check(
        ("a", ["x"], 64, True), ("b", ["x"], 256, True), ("c", ["a", "b"], 32, False), ("d", ["a"], 96, True),
        ("e", ["c", "d"], 128, True), ("f", ["e", "b"], 48, True),
    )  # fmt: skip
    assert kernel.resident >= 1 and "rammer_sync(96)" in kernel.source
    ended = kernel.source.index("atomicInc(&plan0_ended")  # no write to a counter may come after the one that resets it
    assert ended < kernel.source.index("__threadfence();", ended) < kernel.source.index("steps[n] = 0")
    assert [p.name for p in kernel.host.parameters] == ["x", "f"]
    (workspace,) = kernel.host.between  # of a, b, c, d and e
    assert workspace.shape == (5 * SIZE,)
    assert kernel.host.launches[0].grid[0] <= DEVICE.units * 32


def test_a_wait_that_lasts_too_long_ends_the_launch_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roller_tvm.rammer.fused_source._PATIENCE", 1)  # the first poll that finds the counter too low
    kernel, _ = fused(("a", ["x"], 64, True), ("b", ["a"], 96, True), ("c", ["a", "b"], 128, True))
    with pytest.raises(KernelFault, match="__trap"):
        run(kernel, np.ones(SIZE, "float32"))


def test_a_pointer_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """x and three results: 32 bytes of a kernel's parameters."""
    operators = [(name, ["x"], 64, True) for name in "abc"]
    monkeypatch.setattr("roller_tvm.rammer.fused_kernel._PARAMETERS", 32)
    assert len(fused(*operators)[0].host.parameters) == 4
    monkeypatch.setattr("roller_tvm.rammer.fused_kernel._PARAMETERS", 31)
    with pytest.raises(CannotFuse, match="its 4 tensors take 32 B of parameters, a kernel has 31"):
        fused(*operators)


def test_operators_side_by_side_need_no_barrier() -> None:
    kernel = check(("a", ["x"], 64, True), ("b", ["x"], 128, True), ("c", ["x"], 64, True))
    assert kernel.resident == 0 and "steps" not in kernel.source
    assert kernel.host.launches[0].grid == (24 + 12 + 24, 1, 1)
    assert kernel.source.count("static __device__ __noinline__ void plan0_") == 1  # a and c are one function
    assert kernel.source.count("static __device__ __forceinline__ void plan0_") == 1


def test_what_is_in_order_on_its_own_vEU_needs_no_barrier_and_stays_in_order() -> None:
    names = (("a", [], 512, True), ("b", ["a"], 512, True))
    made = [operator(*n) for n in names]
    kernels = tuple((o.name, o.kernels[0]) for o, _ in made)
    builder = ProgramBuilder(VDevice.of(DEVICE, [k for _, k in kernels]), kernels)
    for index in range(SIZE // 512):
        builder.append(RTask("a", 0, index), veu=index)
        builder.append(RTask("b", 0, index), veu=index)
        builder.wait(RTask("b", 0, index), [RTask("a", 0, index)])
    program = builder.build()
    assert program.barriers == 0 and program.waits
    assert TaskProgram.from_json(json.loads(json.dumps(program.to_json()))) == program
    kernel = fuse("plan0", program, {o.name: c for o, c in made}, DEVICE)
    assert kernel.host.launches[0].grid == (SIZE // 512, 1, 1)  # side by side it would be twice as many
    x = np.arange(SIZE, dtype="float32")
    for name, got in run(kernel, x, times=2).items():
        np.testing.assert_array_equal(got, reference(names, x)[name])


def test_what_cannot_be_fused_is_named() -> None:
    made, code = operator("a", ["x"], 48)
    other, more = operator("b", ["x"], 128)
    again = replace(code, source=code.source.replace("  out[", "  out[threadIdx.x] += 1.0f;\n  out["))
    (part,) = plan_graph(DataFlowGraph((made, other)), DEVICE).parts
    assert part.program is not None
    with pytest.raises(CannotFuse, match=r"kernel 'a_kernel': its 48 threads.*done twice: out\[threadIdx.x\] \+= 1.0f"):
        fuse("plan0", part.program, {"a": again, "b": more}, DEVICE)
    made, code = operator("a", ["x"], 64)  # two whole warps: nothing is done twice
    again = replace(code, source=code.source.replace("  out[", "  out[threadIdx.x] += 1.0f;\n  out["))
    (part,) = plan_graph(DataFlowGraph((made, other)), DEVICE).parts
    assert part.program is not None
    assert "rammer_sync(64)" in fuse("plan0", part.program, {"a": again, "b": more}, DEVICE).source
    wrong = replace(code, source=code.source.replace("__syncthreads()", "__syncthreads_or(0)"))
    (part,) = plan_graph(DataFlowGraph((made, other)), DEVICE).parts
    assert part.program is not None
    with pytest.raises(CannotFuse, match="__syncthreads_or in a block of 64 threads, while other operators have 128"):
        fuse("plan0", part.program, {"a": wrong, "b": more}, DEVICE)


def test_shared_memory_of_two_kinds_is_apart() -> None:
    """Declared with its size, and taken at the launch: with one in the other, what is turned would be overwritten."""
    made, code = operator("a", ["x"], 64)
    text = code.source.replace("  __syncthreads();", """  extern __shared__ float more[];
  more[((int)threadIdx.x)] = -turned_shared[((int)threadIdx.x)];
  __syncthreads();
  if (more[0] > 0.0f) turned_shared[((int)threadIdx.x)] = more[((int)threadIdx.x)];
  __syncthreads();""")
    launches = (replace(code.host.launches[0], dynamic_shared=4 * 64),)
    both = replace(code, source=text, host=replace(code.host, launches=launches))
    after, next_code = operator("b", ["a"], 128)
    (part,) = plan_graph(DataFlowGraph((made, after)), DEVICE, "wavefront").parts
    assert part.program is not None
    kernel = fuse("plan0", part.program, {"a": both, "b": next_code}, DEVICE)
    assert kernel.shared_bytes >= 2 * 4 * 64
    x = np.arange(1, SIZE + 1, dtype="float32")
    expected = reference((("a", ["x"], 64, True), ("b", ["a"], 128, True)), x)
    np.testing.assert_array_equal(run(kernel, x)["b"], expected["b"])


def test_threads_that_leave_before_a_barrier_are_refused() -> None:
    """A kernel's own threads may; as a part of another they would come to its next barrier."""
    made, code = operator("a", ["x"], 64)
    other, more = operator("b", ["x"], 128)
    barrier = "  __syncthreads();"
    leaves = replace(code, source=code.source.replace(barrier, f"  if (threadIdx.x > 62) return;\n{barrier}"))
    (part,) = plan_graph(DataFlowGraph((made, other)), DEVICE).parts
    assert part.program is not None
    with pytest.raises(CannotFuse, match="kernel 'a_kernel': threads return"):
        fuse("plan0", part.program, {"a": leaves, "b": more}, DEVICE)


def test_vEUs_that_are_not_resident_together_are_refused() -> None:
    """The kernels take more shared memory than the rKernels said: a block that never starts would be waited for."""
    made, code = operator("a", ["x"], 64)
    after, next_code = operator("b", ["a"], 64)
    big = replace(code, source=code.source.replace("turned_shared[64]", "turned_shared[12000]"))
    (part,) = plan_graph(DataFlowGraph((made, after)), DEVICE, "wavefront").parts
    assert part.program is not None and part.program.used > 2 * DEVICE.units
    with pytest.raises(CannotFuse, match="vEUs wait for one another, and a unit of small has room for 2 of 16"):
        fuse("plan0", part.program, {"a": big, "b": next_code}, DEVICE)


def test_vectors_of_cuda_have_the_bytes_of_their_elements() -> None:
    bytes_of = {"float": 4, "uint": 4, "int": 4, "half": 2, "uchar": 1}
    for name in _SIZES:
        assert element_bytes(name, "x", "k") == bytes_of[name[:-1]] * int(name[-1])
    assert [element_bytes(name, "x", "k") for name in ("float", "half", "int")] == [4, 2, 4]
