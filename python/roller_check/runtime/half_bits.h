// half as 16 bits. Not _Float16: the compiler's helpers for it are functions that TVM's library defines otherwise, and
// exports.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace emu_ {
// To nearest, ties to even.
inline uint16_t f16_bits(double x) {
  uint64_t b;
  memcpy(&b, &x, 8);
  const auto sign = (uint16_t)(b >> 48 & 0x8000);
  b &= ~(uint64_t(1) << 63);
  if (b > uint64_t(0x7ff) << 52) return (uint16_t)(sign | 0x7fff);
  const double magnitude = std::fabs(x);
  if (magnitude >= 65520.0) return (uint16_t)(sign | 0x7c00);
  if (magnitude < 0x1p-14) return (uint16_t)(sign | (uint16_t)std::nearbyint(magnitude * 0x1p24));  // subnormal
  b += (uint64_t(1) << 41) - 1 + (b >> 42 & 1);
  return (uint16_t)(sign | ((b >> 42) - (uint64_t(1023 - 15) << 10)));
}

inline float f16_value(uint16_t bits) {
#ifdef __F16C__  // <immintrin.h> would take ten times as long to compile as a kernel does
  typedef short Halves __attribute__((vector_size(16)));
  return __builtin_ia32_vcvtph2ps(Halves{(short)bits})[0];
#else
  const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
  uint32_t word;
  float f;
  if (exponent == 0) {
    f = (float)fraction * 0x1p-24f;
    memcpy(&word, &f, 4);
    word |= sign;
  } else {
    word = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
  }
  memcpy(&f, &word, 4);
  return f;
#endif
}
}  // namespace emu_
