// CUDA's device functions that <cmath> does not have. Fast forms are computed as the exact ones are.
#pragma once

namespace emu_ {
template <class T, class B> inline T as(B bits) {
  static_assert(sizeof(T) == sizeof(B), "the same bits");
  T v;
  memcpy((void*)&v, (const void*)&bits, sizeof(T));
  return v;
}
template <class A, class B>
using both = std::enable_if_t<std::is_arithmetic<A>::value && std::is_arithmetic<B>::value, std::common_type_t<A, B>>;
}  // namespace emu_

// The number wins over a NaN, as in CUDA.
template <class A, class B> inline emu_::both<A, B> max(A a, B b) {
  using T = emu_::both<A, B>;
  if constexpr (std::is_floating_point<T>::value) return std::fmax((T)a, (T)b);
  else return (T)a < (T)b ? (T)b : (T)a;
}
template <class A, class B> inline emu_::both<A, B> min(A a, B b) {
  using T = emu_::both<A, B>;
  if constexpr (std::is_floating_point<T>::value) return std::fmin((T)a, (T)b);
  else return (T)b < (T)a ? (T)b : (T)a;
}

#define EMU_ALIAS(NAME, F) inline float NAME(float x) { return F(x); }
EMU_ALIAS(__expf, expf)
EMU_ALIAS(__logf, logf)
EMU_ALIAS(__log2f, log2f)
EMU_ALIAS(__log10f, log10f)
EMU_ALIAS(__sinf, sinf)
EMU_ALIAS(__cosf, cosf)
EMU_ALIAS(__tanf, tanf)
EMU_ALIAS(__fsqrt_rn, sqrtf)
EMU_ALIAS(__tanhf, tanhf)
#undef EMU_ALIAS
#ifndef __GLIBC__
inline float exp10f(float x) { return powf(10.0f, x); }
inline double exp10(double x) { return pow(10.0, x); }
#endif
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678f); }
inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
inline void __sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }

inline int __float_as_int(float x) { return emu_::as<int>(x); }
inline unsigned __float_as_uint(float x) { return emu_::as<unsigned>(x); }
inline float __int_as_float(int x) { return emu_::as<float>(x); }
inline float __uint_as_float(unsigned x) { return emu_::as<float>(x); }
inline long long __double_as_longlong(double x) { return emu_::as<long long>(x); }
inline double __longlong_as_double(long long x) { return emu_::as<double>(x); }
inline int __float2int_rn(float x) { return (int)nearbyintf(x); }
inline int __float2int_rz(float x) { return (int)x; }
inline int __float2int_rd(float x) { return (int)floorf(x); }
inline int __float2int_ru(float x) { return (int)ceilf(x); }
inline unsigned __float2uint_rn(float x) { return (unsigned)nearbyintf(x); }
inline float __int2float_rn(int x) { return (float)x; }
inline float __uint2float_rn(unsigned x) { return (float)x; }
inline float __double2float_rn(double x) { return (float)x; }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i);
  return r;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = (uint64_t)b << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; i++) {
    const unsigned s = selector >> (4 * i), byte = (unsigned)(bytes >> (8 * (s & 7))) & 0xff;
    r |= (s & 8 ? (byte & 0x80 ? 0xffu : 0u) : byte) << (8 * i);
  }
  return r;
}
inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline int __mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned s) {
  return (unsigned)(((uint64_t)hi << 32 | lo) << (s & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s) {
  return (unsigned)(((uint64_t)hi << 32 | lo) >> (s & 31));
}

// Four products of bytes, added to c. The type of each operand says how its bytes are read.
namespace emu_ {
template <class A, class B, class C> inline C dp4a(uint32_t a, uint32_t b, C c) {
  for (int i = 0; i < 4; i++) c = (C)((uint32_t)c + (uint32_t)((int)(A)(a >> (8 * i)) * (int)(B)(b >> (8 * i))));
  return c;
}
}  // namespace emu_
inline int __dp4a(int a, int b, int c) { return emu_::dp4a<int8_t, int8_t>((uint32_t)a, (uint32_t)b, c); }
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) { return emu_::dp4a<uint8_t, uint8_t>(a, b, c); }
inline int __dp4a(char4 a, char4 b, int c) { return __dp4a(emu_::as<int>(a), emu_::as<int>(b), c); }
inline unsigned __dp4a(uchar4 a, uchar4 b, unsigned c) { return __dp4a(emu_::as<unsigned>(a), emu_::as<unsigned>(b), c); }
