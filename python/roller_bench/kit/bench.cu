/* What the profile of a CUDA device does not ask: products on tensor cores by mma.sync, which is what generated kernels
 * use, and barriers of a block. Launched by bench.py; operands have random fractions, as zeros cost less power.
 */
#define MMA_CHAINS 8
#define EACH_CHAIN _Pragma("unroll") for (int c = 0; c < MMA_CHAINS; c++)

__device__ unsigned scrambled(unsigned x) {
  x = (x ^ x >> 15) * 2246822519u;
  return (x ^ x >> 13) * 3266489917u;
}

/* KEEP: the bits of sign and fraction; BASE: an exponent near 1. */
#define TENSOR(NAME, SHAPE, TYPES, SUM, LETTER, KEEP, BASE)                                                        \
  extern "C" __global__ void __launch_bounds__(256) NAME(unsigned rounds, SUM never, SUM* out) {                   \
    unsigned a[4], b[2];                                                                                           \
    SUM sums[MMA_CHAINS][4];                                                                                       \
    for (int i = 0; i < 4; i++) a[i] = (scrambled(threadIdx.x * 8 + i + 1) & (KEEP)) | (BASE);                     \
    for (int i = 0; i < 2; i++) b[i] = (scrambled(threadIdx.x * 8 + i + 5) & (KEEP)) | (BASE);                     \
    EACH_CHAIN for (int i = 0; i < 4; i++) sums[c][i] = 0;                                                         \
    for (unsigned r = 0; r < rounds; r++) EACH_CHAIN                                                               \
      asm volatile("mma.sync.aligned." SHAPE ".row.col." TYPES " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                   : "+" LETTER(sums[c][0]), "+" LETTER(sums[c][1]), "+" LETTER(sums[c][2]), "+" LETTER(sums[c][3]) \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                            \
    SUM total = 0;                                                                                                 \
    EACH_CHAIN for (int i = 0; i < 4; i++) total += sums[c][i];                                                    \
    if (total == never) *out = total;                                                                              \
  }
TENSOR(tensor_float16, "m16n8k16", "f32.f16.f16.f32", float, "f", 0x83ff83ffu, 0x38003800u)
TENSOR(tensor_bfloat16, "m16n8k16", "f32.bf16.bf16.f32", float, "f", 0x807f807fu, 0x3f003f00u)
TENSOR(tensor_tfloat32, "m16n8k8", "f32.tf32.tf32.f32", float, "f", 0x807fe000u, 0x3f000000u)
TENSOR(tensor_int8, "m16n8k32", "s32.s8.s8.s32", int, "r", 0xffffffffu, 0u)

extern "C" __global__ void barrier(unsigned rounds, unsigned never, unsigned* out) {
#pragma unroll 16
  for (unsigned r = 0; r < rounds; r++) __syncthreads();
  if (rounds == never) *out = rounds;
}

extern "C" __global__ void empty() {}
