// bfloat16: the upper half of a float.
#pragma once
#include "emulated_half.h"

EMU_HALF_TYPE(__nv_bfloat16, __nv_bfloat162, emu_::bf16_bits, emu_::bf16_value, bfloat16)
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;
EMU_HALF_FUNCTIONS(__nv_bfloat16, __nv_bfloat162)

inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __double2bfloat16(double x) { return __nv_bfloat16(x); }
inline float __bfloat162float(__nv_bfloat16 x) { return (float)x; }
inline __nv_bfloat162 __float2bfloat162_rn(float x) { return {__nv_bfloat16(x), __nv_bfloat16(x)}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {__nv_bfloat16(v.x), __nv_bfloat16(v.y)}; }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {(float)v.x, (float)v.y}; }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) { return {x, x}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat16 __int2bfloat16_rn(int x) { return __nv_bfloat16(x); }
inline short __bfloat16_as_short(__nv_bfloat16 x) { return emu_::as<short>(x); }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return emu_::as<unsigned short>(x); }
inline __nv_bfloat16 __short_as_bfloat16(short x) { return emu_::as<__nv_bfloat16>(x); }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return emu_::as<__nv_bfloat16>(x); }
