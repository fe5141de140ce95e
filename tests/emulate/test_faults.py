"""What a GPU would not survive, or what makes an answer a matter of luck: every kind of fault, and its report."""

import types

import numpy as np
import pytest

from roller_check import DeviceArray, KernelFault, compile
from roller_check.check import check
from roller_tvm.errors import WrongAnswer

HEAD = 'extern "C" __global__ void __launch_bounds__(128) f(float* A, float* B) {\n'


def fault(body, grid=1, block=64, extent=64, given=(), **options):
    """The fault of a kernel whose body starts at line 2, on two buffers of 64 floats."""
    a = DeviceArray((extent,), "float32", "A", np.zeros(extent))
    b = DeviceArray((extent,), "float32", "B")
    with pytest.raises(KernelFault) as found:
        compile(HEAD + body + "}").run("f", grid, block, [a, b, *given], **options)
    assert found.value.kernel == "f" and found.value.exit_code == 1
    return found.value


def test_a_barrier_that_some_threads_leave_out():
    e = fault("  if (threadIdx.x < 40)\n    __syncthreads();\n")
    assert e.kind == "divergent barrier" and e.line == 3
    assert "40 threads wait at line 3" in str(e) and "24 have left" in str(e)


def test_threads_at_different_barriers():
    e = fault("  if (threadIdx.x < 32)\n    __syncthreads();\n  else\n    __syncthreads();\n", grid=(2, 1))
    assert e.kind == "divergent barrier" and e.block == (0, 0, 0)
    assert "32 threads wait at line 3, 32 elsewhere" in str(e) and "waits at line 5" in str(e)


def test_a_barrier_reached_a_different_number_of_times():
    e = fault("  for (int i = 0; i < 1 + (int)threadIdx.x / 63; ++i)\n    __syncthreads();\n")
    assert e.kind == "divergent barrier" and "1 threads wait" in str(e) and "63 have left" in str(e)


@pytest.mark.parametrize(
    ("index", "element"),
    [("64", 64), ("-1", -1), ("1 << 20", 1 << 20), ("-(1 << 29)", -(1 << 29)), ("2147483647", 2147483647)],
)
def test_global_memory_out_of_bounds(index, element):
    e = fault(f"  if (threadIdx.x == 5)\n    B[{index}] = 1.0f;\n", grid=3)
    assert e.kind == "out of bounds" and e.line == 3 and e.thread == (5, 0, 0) and e.block == (0, 0, 0)
    if abs(element) <= 64:  # further away another buffer may be nearer
        assert e.buffer == "B" and f"element {element} of 64" in str(e)


def test_a_read_out_of_bounds_names_the_source():
    e = fault("  B[threadIdx.x] = A[threadIdx.x + 1];\n")
    assert e.kind == "out of bounds" and e.buffer == "A" and e.thread == (63, 0, 0)
    assert "B[threadIdx.x] = A[threadIdx.x + 1];" in str(e)


def test_shared_memory_out_of_bounds():
    e = fault("  __shared__ float S[32];\n  __shared__ float T[32];\n  S[threadIdx.x] = 1.0f;\n  T[0] = 2.0f;\n")
    assert e.kind == "out of bounds" and e.line == 4 and e.thread == (32, 0, 0)


def test_dynamic_shared_memory_out_of_bounds():
    e = fault("  extern __shared__ float D[];\n  D[threadIdx.x * 2] = 1.0f;\n", dynamic_shared=256)
    assert e.kind == "out of bounds" and e.buffer == "D" and e.thread == (32, 0, 0)
    assert "byte 256 of 256" in str(e)


def test_private_arrays_out_of_bounds():
    body = "  float R[4];\n  for (int i = 0; i < (int)A[0] + 5; ++i)\n    R[i] = A[i];\n"
    body += "  B[threadIdx.x] = R[(int)A[1]];\n"
    e = fault(body)
    assert e.kind == "out of bounds" and e.line == 4


def test_shared_memory_nobody_wrote():
    stores = "  __shared__ float S[65];\n  S[threadIdx.x] = 1.0f;\n  __syncthreads();\n"
    e = fault(stores + "  B[threadIdx.x] = S[threadIdx.x + 1];\n")
    assert e.kind == "uninitialised" and e.buffer == "S" and e.thread == (63, 0, 0)


def test_shared_memory_does_not_keep_what_the_last_block_left():
    stores = "  __shared__ float S[64];\n  if (blockIdx.x == 0) S[threadIdx.x] = 1.0f;\n"
    body = stores + "  B[threadIdx.x] = S[threadIdx.x];\n"
    assert fault(body, grid=2).block == (1, 0, 0)


def test_global_memory_nobody_wrote():
    e = fault("  A[threadIdx.x] = B[threadIdx.x];\n")
    assert e.kind == "uninitialised" and e.buffer == "B"


def test_uninitialised_memory_that_is_allowed_is_not_a_number():
    program = compile(HEAD + "  __shared__ float S[64];\n  B[threadIdx.x] = S[threadIdx.x];\n}")
    b = DeviceArray((64,), "float32", "B")
    program.run("f", 1, 64, [np.zeros(1, "float32"), b], uninitialised="allow")
    assert np.isnan(b.numpy()).all()


def test_results_nobody_wrote():
    b = DeviceArray((8, 8), "float32", "B")
    compile(HEAD + "  if (threadIdx.x != 12) B[threadIdx.x] = 0.0f;\n}").run("f", 1, 60, [np.zeros(1, "float32"), b])
    with pytest.raises(KernelFault, match=r"5 of 64 elements were never written, the first at \[1, 4\]"):
        b.numpy()
    assert np.isnan(b.numpy(partly=True)[1, 4])


def test_a_barrier_forgotten_before_reading():
    e = fault("  __shared__ float S[64];\n  S[threadIdx.x] = 1.0f;\n  B[threadIdx.x] = S[threadIdx.x & 31];\n")
    assert e.kind == "race" and e.buffer == "S" and e.line == 4 and "wrote it, with no barrier in between" in str(e)


def test_a_barrier_forgotten_before_overwriting():
    body = (
        "  __shared__ float S[64];\n  for (int i = 0; i < 2; ++i) {\n    S[threadIdx.x] = A[i];\n    __syncthreads();\n"
        "    B[threadIdx.x] = S[63 - threadIdx.x];\n  }\n"
    )
    e = fault(body)
    assert e.kind == "race" and e.line in (4, 6)  # whichever of the two comes second
    # The thread that reads comes first here.
    e = fault(body.replace("63 - threadIdx.x", "(threadIdx.x + 1) % 64"))
    assert e.kind == "race" and e.line == 4 and "thread (0, 0, 0) read it" in str(e) and e.thread == (1, 0, 0)


def test_races_that_are_allowed():
    body = "  __shared__ float S[64];\n  S[threadIdx.x] = 1.0f;\n  B[threadIdx.x] = S[threadIdx.x ^ 1];\n}"
    program = compile(HEAD + body)
    b = DeviceArray((64,), "float32", "B")
    with pytest.raises(KernelFault, match="race|nobody wrote"):
        program.run("f", 1, 64, [np.zeros(1, "float32"), b])
    program.run("f", 1, 64, [np.zeros(1, "float32"), b], races="allow", uninitialised="allow")


def test_two_threads_that_store_different_values():
    e = fault("  __shared__ float S[1];\n  S[0] = (float)threadIdx.x;\n")
    assert e.kind == "race" and e.buffer == "S" and e.thread == (1, 0, 0)


def test_two_threads_of_a_block_and_one_element_of_a_result():
    e = fault("  B[threadIdx.x / 2] = (float)threadIdx.x;\n")
    assert e.kind == "race" and e.buffer == "B" and e.thread == (1, 0, 0) and "thread (0, 0, 0) wrote it" in str(e)
    e = fault("  B[threadIdx.x] = 1.0f;\n  A[threadIdx.x] = B[threadIdx.x / 2];\n")
    assert e.kind == "race" and e.line == 3 and e.thread == (1, 0, 0)


def test_two_blocks_that_store_different_values():
    e = fault("  B[threadIdx.x] = (float)blockIdx.x;\n", grid=(2, 2))
    assert e.kind == "race" and e.buffer == "B" and e.block == (1, 0, 0) and "block (0, 0, 0) wrote it" in str(e)


def test_a_block_that_reads_what_another_writes():
    e = fault("  if (blockIdx.x == 0) B[threadIdx.x] = 1.0f;\n  else A[threadIdx.x] = B[threadIdx.x];\n", grid=2)
    assert e.kind == "race" and e.block == (1, 0, 0)


def test_a_warp_that_parts_at_a_shuffle():
    e = fault("  float v = A[0];\n  if (threadIdx.x % 32 < 16)\n    v = __shfl_down_sync(0xffffffffu, v, 1);\n"
              "  else\n    __syncthreads();\n  B[threadIdx.x] = v;\n")  # fmt: skip
    assert e.kind == "divergent warp" and "__shfl_down_sync" in str(e) and "at line 6" in str(e)


def test_a_vector_load_that_is_not_aligned():
    e = fault("  float4 v = *(float4*)(A + threadIdx.x);\n  B[threadIdx.x] = v.x;\n")
    assert e.kind == "misaligned" and e.thread == (1, 0, 0) and e.line == 2 and "16 bytes" in str(e)


def test_a_block_larger_than_its_bounds():
    assert fault("", block=129).kind == "launch"


def test_more_shared_memory_than_a_block_may_take():
    e = fault("  __shared__ float S[12289];\n  S[0] = 0.0f;\n")
    assert e.kind == "shared memory" and "49156" in str(e) and "49152" in str(e)


def test_a_kernel_that_hangs_is_stopped():
    e = fault("  while (((volatile float*)A)[0] == 0.0f) { }\n", timeout_s=0.3)
    assert e.kind == "timeout"


def test_a_wild_pointer_and_a_trap():
    assert fault("  *(float*)8 = 1.0f;\n").kind in ("crash", "out of bounds")
    e = fault("  assert(threadIdx.x < 3);\n")
    assert e.kind == "trap" and "threadIdx.x < 3" in str(e) and e.thread == (3, 0, 0)


def test_after_a_fault_the_next_kernel_runs():
    fault("  B[threadIdx.x + 64] = 0.0f;\n")
    b = DeviceArray((64,), "float32", "B")
    compile(HEAD + "  B[threadIdx.x] = 3.0f;\n}").run("f", 1, 64, [np.zeros(1, "float32"), b])
    assert (b.numpy() == 3).all()


def test_without_checks_only_barriers_are_watched():
    program = compile(HEAD + "  __shared__ float S[64];\n  B[threadIdx.x] = S[threadIdx.x];\n}", checked=False)
    b = DeviceArray((64,), "float32", "B")
    program.run("f", 1, 64, [np.zeros(1, "float32"), b])
    assert np.isnan(b.numpy()).all()
    program = compile(HEAD + "  if (threadIdx.x) __syncthreads();\n}", checked=False)
    with pytest.raises(KernelFault, match="divergent barrier"):
        program.run("f", 1, 64, [np.zeros(1, "float32"), b])


@pytest.mark.parametrize(("wrote", "right"), [(16, True), (0, False), (3, False)])
def test_blocks_that_write_too_little_are_wrong_though_none_is_compared(wrote, right):
    result = np.ma.array(np.ones(64, np.float32), mask=np.arange(64) >= wrote)
    made = types.SimpleNamespace(blocks=8, launches=[0], run=lambda arrays, sample: [result])
    if right:
        assert check(made, [], [np.ones(64, np.float32)], 1, flops=1e10, budget_s=1.0).elements == wrote
    else:
        with pytest.raises(WrongAnswer, match="2 of 8 blocks wrote"):
            check(made, [], [np.ones(64, np.float32)], 1, flops=1e10, budget_s=1.0)
