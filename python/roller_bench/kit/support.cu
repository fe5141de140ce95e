/* Inputs, references and comparisons of the GPU kit, for one type of elements: `T`, defined by what is put before this
 * text (support.py). Loops are the operators' definitions, one thread an element, sums in float32: nothing here knows
 * of plans, tiles or TVM. `d` holds the sizes, in the order of reference.py.
 */
typedef unsigned long long u64;
#define EACH(i, count) \
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < (count); i += gridDim.x * (u64)blockDim.x)

/* Whole multiples of 1/128 in -1 to 1, exact in every type; inputs.py computes the same. */
extern "C" __global__ void __launch_bounds__(256) fill(T* p, u64 count, unsigned seed) {
  EACH(i, count) {
    unsigned h = ((unsigned)i ^ seed) * 2654435769u;
    h = (h ^ h >> 15) * 2246822519u;
    h = (h ^ h >> 13) * 3266489917u;
    h ^= h >> 16;
    p[i] = (T)((float)((int)(h % 257u) - 128) / 128.0f);
  }
}

/* n c h w f kh kw oh ow stride_h stride_w dilation_h dilation_w top left groups */
extern "C" __global__ void __launch_bounds__(256) conv2d(const T* x, const T* w, T* y, u64 count, const int* d) {
  const int c = d[1], h = d[2], wide = d[3], f = d[4], kh = d[5], kw = d[6], oh = d[7], ow = d[8], groups = d[15];
  const int own = c / groups;
  EACH(i, count) {
    const int across = (int)(i % ow), down = (int)(i / ow % oh), out = (int)(i / ow / oh % f);
    const u64 image = i / ow / oh / f * c + out / (f / groups) * own;
    float sum = 0.0f;
    for (int k = 0; k < own; k++)
      for (int r = 0; r < kh; r++)
        for (int q = 0; q < kw; q++) {
          const int at = down * d[9] + r * d[11] - d[13], to = across * d[10] + q * d[12] - d[14];
          if (at >= 0 && at < h && to >= 0 && to < wide)
            sum += (float)x[((image + k) * h + at) * wide + to] * (float)w[(((u64)out * own + k) * kh + r) * kw + q];
        }
    y[i] = (T)sum;
  }
}

/* batch m n k, whether a is k m, whether b is n k */
extern "C" __global__ void __launch_bounds__(256) matmul(const T* a, const T* b, T* y, u64 count, const int* d) {
  const u64 m = d[1], n = d[2], k = d[3];
  const u64 row = d[4] ? 1 : k, along = d[4] ? m : 1, column = d[5] ? k : 1, down = d[5] ? 1 : n;
  EACH(i, count) {
    const T* left = a + i / n / m * m * k + i / n % m * row;
    const T* right = b + i / n / m * n * k + i % n * column;
    float sum = 0.0f;
    for (u64 r = 0; r < k; r++) sum += (float)left[r * along] * (float)right[r * down];
    y[i] = (T)sum;
  }
}

/* h w kh kw oh ow stride_h stride_w dilation_h dilation_w top left, whether the mean (else the largest) */
extern "C" __global__ void __launch_bounds__(256) pool2d(const T* x, T* y, u64 count, const int* d) {
  EACH(i, count) {
    const int across = (int)(i % d[5]), down = (int)(i / d[5] % d[4]);
    const T* image = x + i / d[5] / d[4] * d[0] * d[1];
    float sum = 0.0f, most = 0.0f;
    int seen = 0;
    for (int r = 0; r < d[2]; r++)
      for (int q = 0; q < d[3]; q++) {
        const int at = down * d[6] + r * d[8] - d[10], to = across * d[7] + q * d[9] - d[11];
        if (at < 0 || at >= d[0] || to < 0 || to >= d[1]) continue;
        const float value = (float)image[at * d[1] + to];
        sum += value;
        most = seen && most > value ? most : value;
        seen++;
      }
    y[i] = (T)(d[12] ? sum / (float)(seen ? seen : 1) : most);
  }
}

extern "C" __global__ void __launch_bounds__(256) relu(const T* x, T* y, u64 count, const int* d) {
  EACH(i, count) y[i] = (float)x[i] > 0.0f ? x[i] : (T)0.0f;
}

/* what follows one another in a sum */
extern "C" __global__ void __launch_bounds__(256) sum_last(const T* x, T* y, u64 count, const int* d) {
  EACH(i, count) {
    float sum = 0.0f;
    for (int r = 0; r < d[0]; r++) sum += (float)x[i * d[0] + r];
    y[i] = (T)sum;
  }
}

/* worst: bits of the largest difference, then where it is (both halves of one word, so that they belong together);
 * told: bits of the largest magnitude that is due, elements that differ, elements that are no number in one alone,
 * elements that differ by more than `limits`: below, a number; above, a share of what is due. Those alone can be the worst. */
extern "C" __global__ void __launch_bounds__(256) compare(const T* got, const T* due, u64 count, u64* worst, unsigned* told, u64 limits) {
  const float least = __uint_as_float((unsigned)limits), relative = __uint_as_float((unsigned)(limits >> 32));
  u64 most = 0;
  unsigned scale = 0, differing = 0, odd = 0, beyond = 0;
  EACH(i, count) {
    const float a = (float)got[i], b = (float)due[i];
    const float gap = a > b ? a - b : b - a, size = b < 0.0f ? -b : b;
    const unsigned bits = gap <= 3.0e38f ? __float_as_uint(gap) : 0x7f800000u;
    const u64 here = (u64)bits << 32 | (u64)(unsigned)i;
    if (size <= 3.0e38f && __float_as_uint(size) > scale) scale = __float_as_uint(size);
    if (a == b) continue;
    differing++;
    odd += bits == 0x7f800000u;
    if (gap <= relative * size + least) continue;
    beyond++;
    most = here > most ? here : most;
  }
  if (scale) atomicMax(told, scale);
  if (beyond) atomicMax(worst, most);
  if (differing) atomicAdd(told + 1, differing);
  if (odd) atomicAdd(told + 2, odd);
  if (beyond) atomicAdd(told + 3, beyond);
}

/* One thread that waits for so many cycles: the card is busy while launches queue up behind it. */
extern "C" __global__ void hold(u64 cycles) {
  const u64 begin = clock64();
  while (clock64() - begin < cycles) {}
}
