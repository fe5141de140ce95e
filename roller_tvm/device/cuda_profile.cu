/* Micro-benchmarks of a CUDA device, launched by cuda_bench.py: each repeats its work `rounds` times, and stores what
 * it computed only under a condition that never holds but that no compiler can see through.
 */
typedef unsigned long long u64;
#define EACH16(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11) M(12) M(13) M(14) M(15)
#define CHAIN_NAME(i) c##i,
#define CHAIN_SUM(i) sum += c##i;

/* Sixteen chains a thread: with the warps of a full unit more than any latency times issue width. */
#define CHAINS(NAME, TYPE, START, STEP)                                       \
  extern "C" __global__ void __launch_bounds__(512) NAME(unsigned rounds, TYPE a, TYPE b, TYPE *out) { \
    TYPE EACH16(CHAIN_NAME) sum = a;                                          \
    EACH16(START)                                                             \
    _Pragma("unroll 4") for (unsigned r = 0; r < rounds; r++) { EACH16(STEP) } \
    EACH16(CHAIN_SUM)                                                         \
    if (sum == b) *out = sum;                                                 \
  }
#define START(i) c##i = a * (i + 1 + threadIdx.x);
#define STEP(i) c##i = c##i * a + b;
CHAINS(fma32, float, START, STEP)
CHAINS(fma64, double, START, STEP)
CHAINS(int32, int, START, STEP)

/* Two half-precision numbers a register; PTX, as the header is not everywhere. */
#if __CUDA_ARCH__ >= 530
#define START16(i) c##i = a ^ (i + 1 + threadIdx.x);
#define STEP16(i) asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(c##i) : "r"(a), "r"(b));
CHAINS(fma16, unsigned, START16, STEP16)
#endif

/* One chain of one thread. */
extern "C" __global__ void latency32(unsigned rounds, float a, float b, float *out) {
  float c = a;
#pragma unroll 16
  for (unsigned r = 0; r < rounds; r++) c = c * a + b;
  if (c == b) *out = c;
}

/* Clock cycles that the first block takes while every unit computes; its clock is that of all. */
extern "C" __global__ void __launch_bounds__(512) clock_cycles(unsigned rounds, float a, float b, float *out, u64 *cycles) {
  u64 start = clock64();
  float c0 = a * threadIdx.x, c1 = b, c2 = a, c3 = c0 + b;
#pragma unroll 4
  for (unsigned r = 0; r < rounds; r++) c0 = c0 * a + b, c1 = c1 * a + b, c2 = c2 * a + b, c3 = c3 * a + b;
  if (c0 + c1 + c2 + c3 == b) *out = c0;
  u64 end = clock64();
  if (blockIdx.x == 0 && threadIdx.x == 0) *cycles = end - start;
}

/* Reads a buffer of `count` float4 whole in every round, past L1. */
extern "C" __global__ void __launch_bounds__(256) read(unsigned rounds, const float4 *p, u64 count, float *out) {
  float4 s = make_float4(0, 0, 0, 0);
  u64 step = (u64)gridDim.x * blockDim.x, first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  for (unsigned r = 0; r < rounds; r++) {
    u64 i = first;
    for (; i + 3 * step < count; i += 4 * step) {
      float4 v[4];
#pragma unroll
      for (int k = 0; k < 4; k++) v[k] = __ldcg(p + i + k * step);
#pragma unroll
      for (int k = 0; k < 4; k++) s.x += v[k].x, s.y += v[k].y, s.z += v[k].z, s.w += v[k].w;
    }
    for (; i < count; i += step) {
      float4 v = __ldcg(p + i);
      s.x += v.x, s.y += v.y, s.z += v.z, s.w += v.w;
    }
  }
  if (s.x + s.y + s.z + s.w == 1) *out = s.x; /* the buffer is all zeros */
}

/* 16 bytes a thread, neighbours beside each other: no bank conflicts.  Other words in every round, or a compiler would
 * keep them in registers. */
#define SHARED 1024
extern "C" __global__ void __launch_bounds__(512) shared_read(unsigned rounds, float *out) {
  __shared__ float4 words[SHARED];
  for (unsigned i = threadIdx.x; i < SHARED; i += blockDim.x) words[i] = make_float4(0, 0, 0, 0);
  __syncthreads();
  float4 s = make_float4(0, 0, 0, 0);
  unsigned at = threadIdx.x;
  for (unsigned r = 0; r < rounds; r++) {
    at = (at + 8) % (SHARED / 2);
#pragma unroll
    for (int k = 0; k < 8; k++) {
      float4 v = words[at + k * (SHARED / 16)];
      s.x += v.x, s.y += v.y, s.z += v.z, s.w += v.w;
    }
  }
  if (s.x + s.y + s.z + s.w == 1) *out = s.x;
}

extern "C" __global__ void shared_chase(unsigned rounds, unsigned *out) {
  __shared__ unsigned next[SHARED];
#pragma unroll 1
  for (unsigned i = 0; i < SHARED; i++) next[i] = (i * 5 + 7) % SHARED * 4; /* a full cycle: 5 = 1 modulo 4, 7 is odd */
  unsigned at = 0;
#pragma unroll 8
  for (unsigned r = 0; r < rounds; r++) at = *(unsigned *)((char *)next + at);
  if (at == 1) *out = at; /* never: all are multiples of four */
}

/* A full cycle through `lines` (a power of two) lines of `words` words, in the order of a congruential generator. */
extern "C" __global__ void make_cycle(u64 *p, u64 lines, u64 words) {
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < lines; i += (u64)gridDim.x * blockDim.x)
    p[i * words] = (u64)(p + ((i * 1664525 + 1013904223) & (lines - 1)) * words);
}

/* Goes on where it stopped: a repeat that began anew would find its lines in a nearer cache. */
extern "C" __global__ void chase(unsigned rounds, u64 *at) {
  u64 *p = (u64 *)*at;
#pragma unroll 8
  for (unsigned r = 0; r < rounds; r++) p = (u64 *)__ldcg(p);
  *at = (u64)p;
}

extern "C" __global__ void nothing() {}
