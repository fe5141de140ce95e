// Tensor cores: mma.sync and ldmatrix with the lanes' registers where PTX says they are, and the products of WMMA.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "half_bits.h"
#include "state.h"

namespace emu {
namespace {

float float_of(uint32_t bits) {
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
uint32_t float_bits(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  return bits;
}

int bits_of(int type) {
  switch (type) {
    case EMU_F16:
    case EMU_BF16: return 16;
    case EMU_S8:
    case EMU_U8: return 8;
    case EMU_F64: return 64;
    default: return 32;
  }
}

// Element i of packed elements.
double element(const void* p, int i, int type) {
  switch (type) {
    case EMU_F16: return emu_::f16_value(((const uint16_t*)p)[i]);
    case EMU_BF16: return float_of((uint32_t)((const uint16_t*)p)[i] << 16);
    case EMU_TF32: return float_of(((const uint32_t*)p)[i] & 0xffffe000u);  // ten bits of fraction are read
    case EMU_F32: return float_of(((const uint32_t*)p)[i]);
    case EMU_S8: return ((const int8_t*)p)[i];
    case EMU_U8: return ((const uint8_t*)p)[i];
    case EMU_S32: return ((const int32_t*)p)[i];
    default: return ((const double*)p)[i];
  }
}

void store(void* p, int i, int type, double value, bool saturate) {
  switch (type) {
    case EMU_F16: ((uint16_t*)p)[i] = emu_::f16_bits(value); break;
    case EMU_F32: ((uint32_t*)p)[i] = float_bits((float)value); break;
    case EMU_S32: {
      if (saturate) value = fmin(fmax(value, -2147483648.0), 2147483647.0);
      ((int32_t*)p)[i] = (int32_t)(int64_t)value;  // wraps around
      break;
    }
    default: ((double*)p)[i] = value;
  }
}

struct Mma {
  int m, n, k, a_type, b_type, c_type, d_type, saturate;
  void* d;
  const void *a, *b, *c;
};
Mma& of(WarpCall* call) { return *(Mma*)call->data; }

void multiply(const Mma& s, const double* a, const double* b, double* c) {
  for (int i = 0; i < s.m; i++)
    for (int l = 0; l < s.k; l++) {
      const double x = a[i * s.k + l];
      for (int j = 0; j < s.n; j++) c[i * s.n + j] += x * b[l * s.n + j];
    }
}

constexpr int MOST = 32 * 64;

void mma(WarpCall** lanes, unsigned) {
  static double a[MOST], b[MOST], c[MOST];
  const Mma& s = of(lanes[0]);
  // Each register holds `pack` neighbours along k; registers go down the rows in steps of 8, then along k.
  const int pack_a = s.a_type == EMU_F64 ? 1 : 32 / bits_of(s.a_type), rows = s.m / 8;
  for (int lane = 0; lane < 32; lane++) {
    const int group = lane >> 2, within = lane & 3;
    const Mma& own = of(lanes[lane]);
    for (int e = 0; e < s.m * s.k / 32; e++) {
      const int r = e / pack_a, row = group + 8 * (r % rows), column = pack_a * within + e % pack_a + 4 * pack_a * (r / rows);
      a[row * s.k + column] = element(own.a, e, s.a_type);
    }
    for (int e = 0; e < s.k * s.n / 32; e++) {
      const int row = pack_a * within + e % pack_a + 4 * pack_a * (e / pack_a);
      b[row * s.n + group] = element(own.b, e, s.b_type);
    }
    for (int e = 0; e < s.m * s.n / 32; e++)
      c[(group + 8 * (e / 2)) * s.n + 2 * within + e % 2] = element(own.c, e, s.c_type);
  }
  multiply(s, a, b, c);
  for (int lane = 0; lane < 32; lane++) {
    const int group = lane >> 2, within = lane & 3;
    Mma& own = of(lanes[lane]);
    for (int e = 0; e < s.m * s.n / 32; e++)
      store(own.d, e, s.d_type, c[(group + 8 * (e / 2)) * s.n + 2 * within + e % 2], own.saturate);
  }
}

// WMMA says nothing of where a fragment's elements are: lane l holds the l-th part of the matrix, row by row.
void wmma(WarpCall** lanes, unsigned) {
  static double a[MOST], b[MOST], c[MOST];
  const Mma& s = of(lanes[0]);
  const int as = s.m * s.k / 32, bs = s.k * s.n / 32, cs = s.m * s.n / 32;
  for (int lane = 0; lane < 32; lane++) {
    const Mma& own = of(lanes[lane]);
    for (int e = 0; e < as; e++) a[lane * as + e] = element(own.a, e, s.a_type);
    for (int e = 0; e < bs; e++) b[lane * bs + e] = element(own.b, e, s.b_type);
    for (int e = 0; e < cs; e++) c[lane * cs + e] = element(own.c, e, s.c_type);
  }
  multiply(s, a, b, c);
  for (int lane = 0; lane < 32; lane++)
    for (int e = 0; e < cs; e++) store(of(lanes[lane]).d, e, s.d_type, c[lane * cs + e], s.saturate);
}

struct Rows {
  int count, transpose;
  const char* row;
  uint32_t* d;
};

void ldmatrix(WarpCall** lanes, unsigned) {
  auto of_lane = [&](int lane) -> Rows& { return *(Rows*)lanes[lane]->data; };
  const Rows& s = of_lane(0);
  for (int matrix = 0; matrix < s.count; matrix++)
    for (int lane = 0; lane < 32; lane++) {
      uint16_t two[2];
      for (int i = 0; i < 2; i++) {
        const int row = s.transpose ? 2 * (lane & 3) + i : lane >> 2, column = s.transpose ? lane >> 2 : 2 * (lane & 3) + i;
        memcpy(&two[i], of_lane(matrix * 8 + row).row + 2 * column, 2);
      }
      memcpy(&of_lane(lane).d[matrix], two, 4);
    }
}

}  // namespace
}  // namespace emu

using namespace emu;

// A whole warp takes part: a block whose last warp is not full cannot.
static void full_warp(int line, const char* what) {
  if (launch.me / 32 * 32 + 32 > launch.count) {
    auto& e = report(EMU_WARP_DIVERGENT);
    e.line = line;
    snprintf(e.text, sizeof e.text, "%s, by a warp of %u threads", what, launch.count % 32);
    fail();
  }
}

extern "C" {

void emu_mma(int line, int m, int n, int k, int a_type, int b_type, int c_type, int saturate, uint32_t* d,
             const uint32_t* a, const uint32_t* b, const uint32_t* c) {
  full_warp(line, "mma.sync");
  Mma s{m, n, k, a_type, b_type, c_type, c_type, saturate, d, a, b, c};
  WarpCall call{mma, line, (m * 64 + n) * 64 + k, ~0u, false, "mma.sync", &s};
  arrive(call);
}

void emu_wmma(int line, int m, int n, int k, int a_type, int b_type, int c_type, int d_type, void* d, const void* a,
              const void* b, const void* c) {
  full_warp(line, "wmma::mma_sync");
  Mma s{m, n, k, a_type, b_type, c_type, d_type, 0, d, a, b, c};
  WarpCall call{wmma, line, (m * 64 + n) * 64 + k, ~0u, false, "wmma::mma_sync", &s};
  arrive(call);
}

void emu_ldmatrix(int line, int count, int transpose, uint64_t address, uint32_t* d) {
  full_warp(line, "ldmatrix");
  const char* row = (const char*)emu_shared_pointer(address);
  launch.hint = line;
  if ((int)(launch.me % 32) < 8 * count) {
    emu_check_aligned(row, 16, 0);
    emu_check(row, 16, 0);
  }
  Rows s{count, transpose, row, d};
  WarpCall call{ldmatrix, line, count * 2 + transpose, ~0u, false, "ldmatrix", &s};
  arrive(call);
}
}
