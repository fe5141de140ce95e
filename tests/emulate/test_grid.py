"""Blocks that wait for one another: persistent kernels whose blocks take turns while they poll."""

import numpy as np
import pytest

from roller_check import KernelFault, compile

RING = """
__device__ unsigned steps[64];
extern "C" __global__ void ring(float* A, int rounds) {
  __shared__ float mine[64];
  const unsigned before = (blockIdx.x + gridDim.x - 1) % gridDim.x;
  for (int round = 0; round < rounds; ++round) {
    const unsigned turn = round * gridDim.x + blockIdx.x;  // of all the steps
    mine[threadIdx.x] = (float)threadIdx.x * turn;
    if (threadIdx.x == 0) {
      while (((volatile unsigned*)steps)[before] < (turn ? turn : 0)) __nanosleep(20);
      __threadfence();
    }
    __syncthreads();
    A[threadIdx.x] += mine[63 - threadIdx.x];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) ((volatile unsigned*)steps)[blockIdx.x] = turn + 1;
  }
}"""


@pytest.mark.parametrize("order", [range(8), reversed(range(8))])
def test_blocks_take_turns(order):
    """Block after block adds to the same numbers, three times round; shared memory is each block's own."""
    a = np.zeros(64, "float32")
    compile(RING.replace("steps[64]", f"steps[{65 + len(repr(order))}]")).run("ring", 8, 64, [a, 3], blocks=list(order))
    assert (a == (63 - np.arange(64)) * sum(range(24))).all()


def test_blocks_that_wait_for_ever():
    with pytest.raises(KernelFault, match="7 blocks poll for what none of them will write"):
        compile(RING.replace("steps[64]", "steps[66]")).run("ring", 8, 64, [np.zeros(64, "float32"), 3],
                                                            blocks=[1, 2, 3, 4, 5, 6, 7])


def test_barriers_of_some_warps():
    """Two warps of four meet at a barrier of their own while the others wait at the block's."""
    source = """
    extern "C" __global__ void f(float* A) {
      __shared__ float S[64];
      if (threadIdx.x < 64) {
        for (int i = 0; i < 3; ++i) {
          S[threadIdx.x] = A[threadIdx.x];
          asm volatile("bar.sync 1, %0;" :: "r"(64) : "memory");
          A[threadIdx.x] = S[63 - threadIdx.x] + 1.0f;
          asm volatile("bar.sync 1, %0;" :: "r"(64) : "memory");
        }
      }
      __syncthreads();
      if (threadIdx.x >= 64) A[threadIdx.x] = A[threadIdx.x - 64];
    }"""
    a = np.arange(128, dtype="float32")
    compile(source).run("f", 1, 128, [a])
    assert (a[:64] == 63 - np.arange(64) + 3).all() and (a[64:] == a[:64]).all()
    with pytest.raises(KernelFault, match="divergent barrier"):
        compile(source.replace('"r"(64)', '"r"(96)')).run("f", 1, 128, [a])
