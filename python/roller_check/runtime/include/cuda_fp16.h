// half: stored in 16 bits, computed in float and rounded after each operation (which for + - * / is exact rounding).
#pragma once
#include "emulated_half.h"

EMU_HALF_TYPE(__half, __half2, emu_::f16_bits, emu_::f16_value, half)
using half = __half;
using half2 = __half2;
EMU_HALF_FUNCTIONS(__half, __half2)

inline __half __float2half(float x) { return __half(x); }
inline __half __float2half_rn(float x) { return __half(x); }
inline __half __double2half(double x) { return __half(x); }
inline float __half2float(__half x) { return (float)x; }
inline __half2 __float2half2_rn(float x) { return {__half(x), __half(x)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline __half2 __float22half2_rn(float2 v) { return {__half(v.x), __half(v.y)}; }
inline float2 __half22float2(__half2 v) { return {(float)v.x, (float)v.y}; }
inline __half2 __half2half2(__half x) { return {x, x}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 make_half2(__half x, __half y) { return {x, y}; }
inline __half __int2half_rn(int x) { return __half(x); }
inline __half __short2half_rn(short x) { return __half(x); }
inline __half __uint2half_rn(unsigned x) { return __half(x); }
inline int __half2int_rz(__half x) { return (int)(float)x; }
inline int __half2int_rn(__half x) { return (int)nearbyintf((float)x); }
inline short __half_as_short(__half x) { return emu_::as<short>(x); }
inline unsigned short __half_as_ushort(__half x) { return emu_::as<unsigned short>(x); }
inline __half __short_as_half(short x) { return emu_::as<__half>(x); }
inline __half __ushort_as_half(unsigned short x) { return emu_::as<__half>(x); }
