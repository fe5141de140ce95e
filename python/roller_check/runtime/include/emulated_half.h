// What half and bfloat16 have in common.
#pragma once
#include "../half_bits.h"

namespace emu_ {
inline uint16_t bf16_bits(double x) {
  const auto f = (float)x;
  const uint32_t bits = as<uint32_t>(f);
  if (f != f) return 0x7fff;
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // to nearest, ties to even
}
inline float bf16_value(uint16_t bits) { return as<float>((uint32_t)bits << 16); }
}  // namespace emu_

#define EMU_HALF_TYPE(H, H2, BITS, VALUE, WORD)                                                               \
  struct alignas(2) H {                                                                                       \
    unsigned short bits;                                                                                      \
    H() = default;                                                                                            \
    template <class T, std::enable_if_t<std::is_arithmetic<T>::value, int> = 0>                               \
    H(T v) : bits(BITS((double)v)) {}                                                                         \
    operator float() const { return VALUE(bits); }                                                            \
    H& operator+=(H o) { return *this = H((float)*this + (float)o); }                                         \
    H& operator-=(H o) { return *this = H((float)*this - (float)o); }                                         \
    H& operator*=(H o) { return *this = H((float)*this * (float)o); }                                         \
    H& operator/=(H o) { return *this = H((float)*this / (float)o); }                                         \
  };                                                                                                          \
  struct alignas(4) H2 { H x, y; H2() = default; H2(H a, H b) : x(a), y(b) {} };                              \
  inline H operator+(H a, H b) { return H((float)a + (float)b); }                                             \
  inline H operator-(H a, H b) { return H((float)a - (float)b); }                                             \
  inline H operator*(H a, H b) { return H((float)a * (float)b); }                                             \
  inline H operator/(H a, H b) { return H((float)a / (float)b); }                                             \
  inline H operator-(H a) { return H(-(float)a); }                                                            \
  inline H operator+(H a) { return a; }                                                                       \
  inline bool operator<(H a, H b) { return (float)a < (float)b; }                                             \
  inline bool operator>(H a, H b) { return (float)a > (float)b; }                                             \
  inline bool operator<=(H a, H b) { return (float)a <= (float)b; }                                           \
  inline bool operator>=(H a, H b) { return (float)a >= (float)b; }                                           \
  inline bool operator==(H a, H b) { return (float)a == (float)b; }                                           \
  inline bool operator!=(H a, H b) { return (float)a != (float)b; }

#define EMU_HALF_UNARY(H, H2, NAME, ...)                       \
  inline H h##NAME(H v) {                                      \
    const float x = (float)v;                                  \
    return H(__VA_ARGS__);                                     \
  }                                                            \
  inline H2 h2##NAME(H2 v) { return {h##NAME(v.x), h##NAME(v.y)}; }
#define EMU_HALF_BINARY(H, H2, NAME, OP)                       \
  inline H __h##NAME(H a, H b) { return a OP b; }              \
  inline H __h##NAME##_rn(H a, H b) { return a OP b; }         \
  inline H2 __h##NAME##2(H2 a, H2 b) { return {a.x OP b.x, a.y OP b.y}; }
#define EMU_HALF_COMPARE(H, NAME, OP) \
  inline bool __h##NAME(H a, H b) { return (float)a OP (float)b; }

#define EMU_HALF_FUNCTIONS(H, H2)                                                                             \
  EMU_HALF_UNARY(H, H2, exp, expf(x))                                                                         \
  EMU_HALF_UNARY(H, H2, exp2, exp2f(x))                                                                       \
  EMU_HALF_UNARY(H, H2, exp10, powf(10.0f, x))                                                                \
  EMU_HALF_UNARY(H, H2, log, logf(x))                                                                         \
  EMU_HALF_UNARY(H, H2, log2, log2f(x))                                                                       \
  EMU_HALF_UNARY(H, H2, log10, log10f(x))                                                                     \
  EMU_HALF_UNARY(H, H2, sqrt, sqrtf(x))                                                                       \
  EMU_HALF_UNARY(H, H2, rsqrt, 1.0f / sqrtf(x))                                                               \
  EMU_HALF_UNARY(H, H2, sin, sinf(x))                                                                         \
  EMU_HALF_UNARY(H, H2, cos, cosf(x))                                                                         \
  EMU_HALF_UNARY(H, H2, ceil, ceilf(x))                                                                       \
  EMU_HALF_UNARY(H, H2, floor, floorf(x))                                                                     \
  EMU_HALF_UNARY(H, H2, trunc, truncf(x))                                                                     \
  EMU_HALF_UNARY(H, H2, rint, nearbyintf(x))                                                                  \
  EMU_HALF_UNARY(H, H2, rcp, 1.0f / x)                                                                        \
  EMU_HALF_BINARY(H, H2, add, +)                                                                              \
  EMU_HALF_BINARY(H, H2, sub, -)                                                                              \
  EMU_HALF_BINARY(H, H2, mul, *)                                                                              \
  inline H __hdiv(H a, H b) { return a / b; }                                                                 \
  inline H2 __h2div(H2 a, H2 b) { return {a.x / b.x, a.y / b.y}; }                                            \
  EMU_HALF_COMPARE(H, eq, ==)                                                                                 \
  EMU_HALF_COMPARE(H, ne, !=)                                                                                 \
  EMU_HALF_COMPARE(H, lt, <)                                                                                  \
  EMU_HALF_COMPARE(H, le, <=)                                                                                 \
  EMU_HALF_COMPARE(H, gt, >)                                                                                  \
  EMU_HALF_COMPARE(H, ge, >=)                                                                                 \
  inline H __hneg(H a) { return -a; }                                                                         \
  inline H2 __hneg2(H2 a) { return {-a.x, -a.y}; }                                                            \
  inline H __habs(H a) { return H(fabsf((float)a)); }                                                         \
  inline H2 __habs2(H2 a) { return {__habs(a.x), __habs(a.y)}; }                                              \
  inline H __hmax(H a, H b) { return H(fmaxf((float)a, (float)b)); }                                          \
  inline H __hmin(H a, H b) { return H(fminf((float)a, (float)b)); }                                          \
  inline H2 __hmax2(H2 a, H2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                              \
  inline H2 __hmin2(H2 a, H2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                              \
  inline H __hfma(H a, H b, H c) { return H((double)a * (double)b + (double)c); }                             \
  inline H2 __hfma2(H2 a, H2 b, H2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }              \
  inline bool __hisnan(H a) { return (float)a != (float)a; }                                                  \
  inline int __hisinf(H a) { return std::isinf((float)a) ? ((float)a < 0 ? -1 : 1) : 0; }                     \
  inline H __low2half_of(H2 a) { return a.x; }                                                                \
  inline H2 operator+(H2 a, H2 b) { return {a.x + b.x, a.y + b.y}; }                                          \
  inline H2 operator-(H2 a, H2 b) { return {a.x - b.x, a.y - b.y}; }                                          \
  inline H2 operator*(H2 a, H2 b) { return {a.x * b.x, a.y * b.y}; }                                          \
  inline H2 operator/(H2 a, H2 b) { return {a.x / b.x, a.y / b.y}; }
