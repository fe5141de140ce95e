"""Blocks, barriers, shared memory, warps, atomics: small kernels against numpy."""

import numpy as np
import pytest

from roller_check import DeviceArray, compile
from roller_tvm.errors import UsageError

from ..sampling import sampled


def run(body, args, grid=1, block=32, parameters="float* A, float* B", head="", **options):
    program = compile(head + 'extern "C" __global__ void f(' + parameters + ") {" + body + "}")
    program.run("f", grid, block, args, **options)


def test_indices_of_three_dimensions():
    out = np.zeros((2, 3, 4, 2, 2, 5, 6), "int32")
    body = """
      int b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
      int t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
      int* to = A + (b * blockDim.x * blockDim.y * blockDim.z + t) * 6;
      to[0] = blockIdx.x; to[1] = blockIdx.y; to[2] = blockIdx.z;
      to[3] = threadIdx.x; to[4] = threadIdx.y; to[5] = threadIdx.z;"""
    run(body, [out], (4, 3, 2), (5, 2, 2), "int* A")
    z, y, x, tz, ty, tx = np.indices((2, 3, 4, 2, 2, 5))
    assert (out == np.stack([x, y, z, tx, ty, tz], -1)).all()


def test_barriers_in_a_loop_reverse_through_shared_memory():
    a, b = np.arange(256, dtype="float32"), np.zeros(256, "float32")
    body = """
      __shared__ float S[256];
      float v = A[threadIdx.x];
      for (int i = 0; i < 5; ++i) {
        __syncthreads();
        S[threadIdx.x] = v;
        __syncthreads();
        v = S[255 - threadIdx.x] + 1.0f;
      }
      B[threadIdx.x] = v;"""
    run(body, [a, b], block=256)
    assert (b == a[::-1] + 5).all()


def test_dynamic_shared_memory_beyond_48_KiB():
    b = np.zeros(1024, "float32")
    body = """
      extern __shared__ __align__(64) unsigned char buffer[];
      ((float*)buffer)[threadIdx.x * 24] = (float)threadIdx.x;
      __syncthreads();
      B[threadIdx.x] = ((float*)buffer)[(1023 - threadIdx.x) * 24];"""
    run(body, [b], block=1024, parameters="float* B", dynamic_shared=98304)
    assert (b == np.arange(1024)[::-1]).all()


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("__shfl_down_sync(0xffffffffu, v, 3, 32)", lambda i: np.where(i + 3 < 32, i + 3, i)),
        ("__shfl_up_sync(0xffffffffu, v, 3, 32)", lambda i: np.where(i >= 3, i - 3, i)),
        ("__shfl_xor_sync(0xffffffffu, v, 5)", lambda i: i ^ 5),
        ("__shfl_sync(0xffffffffu, v, 7, 8)", lambda i: i // 8 * 8 + 7),
        ("__shfl_down_sync(0xffffffffu, v, 2, 4)", lambda i: np.where(i % 4 < 2, i + 2, i)),
        ("(float)__popc(__ballot_sync(0xffffffffu, v < 11.0f))", lambda i: 11 + 0 * i),
        ("(float)__any_sync(0xffffffffu, v == 31.0f)", lambda i: 1 + 0 * i),
        ("(float)__all_sync(0xffffffffu, v < 31.0f)", lambda i: 0 * i),
        ("(float)__popc(__match_any_sync(0xffffffffu, (int)threadIdx.x / 6))", lambda i: np.where(i < 30, 6, 2)),
        ("(float)__popc(__activemask())", lambda i: 32 + 0 * i),
        ("(float)__reduce_add_sync(0xffffffffu, (int)threadIdx.x - 20)", lambda i: -144 + 0 * i),
        ("(float)__reduce_min_sync(0xffffffffu, (int)threadIdx.x - 20)", lambda i: -20 + 0 * i),
        ("(float)__reduce_max_sync(0xffffffffu, threadIdx.x - 1u)", lambda i: 2.0**32 + 0.0 * i),
        ("(float)__reduce_and_sync(0xffffffffu, threadIdx.x | 4u)", lambda i: 4 + 0 * i),
        ("(float)__reduce_or_sync(0xffffffffu, threadIdx.x & 6u)", lambda i: 6 + 0 * i),
        ("(float)__reduce_xor_sync(0xffffffffu, threadIdx.x + 1u)", lambda i: 32 + 0 * i),
    ],
)
def test_warp_operations(call, expected):
    a, b = np.arange(32, dtype="float32"), np.zeros(32, "float32")
    run(f"float v = A[threadIdx.x]; B[threadIdx.x] = {call};", [a, b])
    assert (b == expected(np.arange(32))).all()


@pytest.mark.parametrize("same", [True, False])
def test_lanes_that_all_agree(same):
    b = np.zeros(32, "int32")
    value = "7" if same else "(int)threadIdx.x / 31"
    call = f"__match_all_sync(0xffffffffu, {value}, &all)"
    run(f"int all; unsigned m = {call}; B[threadIdx.x] = all + (m == 0xffffffffu);", [b], parameters="int* B")
    assert (b == 2 * same).all()


def test_a_tree_of_shuffles_in_halves():
    """The sum of a row by warps, as generated reductions have it: shuffles, then a word a warp in shared memory."""
    a = np.random.default_rng(0).integers(-8, 8, 100).astype("float16")
    b = np.zeros(1, "float16")
    body = """
      __shared__ half S[4];
      half v = threadIdx.x < 100 ? A[threadIdx.x] : (half)0.0f;
      for (int offset = 16; offset > 0; offset /= 2) v = v + __shfl_down_sync(0xffffffffu, v, offset);
      if (threadIdx.x % 32 == 0) S[threadIdx.x / 32] = v;
      __syncthreads();
      if (threadIdx.x == 0) B[0] = S[0] + S[1] + S[2] + S[3];"""
    run(body, [a, b], block=128, parameters="half* A, half* B", head="#include <cuda_fp16.h>\n")
    assert b[0] == a.sum()


@pytest.mark.parametrize(
    ("c_type", "call", "expected"),
    sampled([
        ("float", "atomicAdd(A, 0.25f)", 3 + 24), ("double", "atomicAdd(A, 0.25)", 3 + 24),
        ("half", "atomicAdd(A, (half)0.25f)", 3 + 24), ("int", "atomicSub(A, 2)", 3 - 192),
        ("int", "atomicMin(A, 50 - (int)(threadIdx.x + 32 * blockIdx.x))", -45),
        ("unsigned", "atomicOr(A, 1u << blockIdx.x)", 7),
        ("unsigned", "atomicXor(A, threadIdx.x)", 3), ("unsigned", "atomicInc(A, 9u)", (3 + 96) % 10),
        ("int", "atomicAdd_block(A, 1)", 99), ("unsigned long long", "atomicAdd(A, 1ull << 40)", 3 + (96 << 40)),
        ("int", "int seen = 3, old; do seen = atomicCAS(A, old = seen, seen + 2); while (seen != old)", 3 + 192),
    ], 4),
)  # fmt: skip
def test_atomics(c_type, call, expected):
    kinds = {"half": "float16", "float": "float32", "double": "float64", "int": "int32", "unsigned": "uint32"}
    a = np.array([3], kinds.get(c_type, "uint64"))
    run(f"{call};", [a], 3, 32, f"{c_type}* A", head="#include <cuda_fp16.h>\n", races="allow")
    assert a[0] == expected


def test_lanes_in_a_branch_have_a_mask_of_their_own():
    b = np.zeros(48, "int32")
    body = """
      if (threadIdx.x % 3 == 0) { unsigned m = __activemask(); B[threadIdx.x] = __popc(m); }
      else B[threadIdx.x] = -1;"""
    run(body, [b], block=48, parameters="int* B")
    assert b[::3].tolist() == [11] * 11 + [5] * 5  # lanes 0, 3, .. of the first warp, 33, .. of the second, half one


def test_barriers_that_count():
    b = np.zeros((3, 64), "int32")
    body = """
      int p = threadIdx.x < 10;
      B[threadIdx.x] = __syncthreads_count(p);
      B[64 + threadIdx.x] = __syncthreads_or(p);
      B[128 + threadIdx.x] = __syncthreads_and(p);"""
    run(body, [b], block=64, parameters="int* B")
    assert (b == [[10], [1], [0]]).all()


def test_atomics_of_shared_and_global_memory():
    out = np.zeros(4, "int32")
    total = np.zeros(1, "float32")
    body = """
      __shared__ int S[4];
      if (threadIdx.x < 4) S[threadIdx.x] = 0;
      __syncthreads();
      atomicAdd(&S[threadIdx.x % 4], (int)threadIdx.x);
      __syncthreads();
      if (threadIdx.x < 4) atomicMax(&A[threadIdx.x], S[threadIdx.x] + (int)blockIdx.x);
      atomicAdd(B, 0.5f);"""
    run(body, [out, total], 3, 64, "int* A, float* B")
    assert out.tolist() == [sum(range(i, 64, 4)) + 2 for i in range(4)]
    assert total[0] == 96


def test_the_last_block_adds_up_what_others_left():
    parts, count, out = DeviceArray((8,), "float32", "parts"), np.zeros(1, "uint32"), np.zeros(1, "float32")
    body = """
      __shared__ bool last;
      if (threadIdx.x == 0) {
        A[blockIdx.x] = (float)blockIdx.x;
        __threadfence();
        last = atomicAdd(C, 1u) == gridDim.x - 1;
      }
      __syncthreads();
      if (last && threadIdx.x == 0) { float s = 0; for (int i = 0; i < 8; ++i) s += A[i]; B[0] = s; }"""
    run(body, [parts, out, count], 8, 32, "float* A, float* B, unsigned* C")
    assert out[0] == 28


def test_threads_that_store_what_all_computed_do_not_race():
    a, b = np.arange(32, dtype="float32"), np.zeros(32, "float32")
    body = """
      __shared__ float S[1];
      S[0] = A[7];
      __syncthreads();
      B[threadIdx.x] = S[0] + A[threadIdx.x];"""
    run(body, [a, b])
    assert (b == a + 7).all()


def test_blocks_that_store_what_all_computed_do_not_race():
    """Whatever their numbers: some look like the mark of atomic operations."""
    a = np.zeros(1, "float32")
    run("if (threadIdx.x == 0) A[0] = 2.0f;", [a], grid=5000, parameters="float* A")
    assert a[0] == 2


def test_a_kernel_without_memory():
    run("if (x > 2) __trap();", [1], parameters="int x")


def test_scalars_and_an_array_given_as_device_memory():
    a = DeviceArray((16,), "float32", "A", np.ones(16))
    run("A[threadIdx.x] = A[threadIdx.x] * x + n;", [a, 2.5, -3], block=16, parameters="float* A, double x, int n")
    assert (a.numpy() == -0.5).all()


def test_arguments_that_do_not_fit():
    with pytest.raises(UsageError, match="1 arguments for 2 parameters"):
        run("", [np.zeros(1, "float32")])
    with pytest.raises(UsageError, match="float64"):
        run("", [np.zeros(1, "float64"), np.zeros(1, "float32")])
    with pytest.raises(UsageError, match="'grid'"):
        run("", [np.zeros(1, "float32"), np.zeros(1, "float32")], grid=(1, 0))
