// Vector types, with the alignment that CUDA gives them: an access that is not aligned fails on a GPU.
#pragma once

#define EMU_VECTOR(T, NAME, BYTES)                                                                   \
  struct alignas(BYTES) NAME##1 { T x; };                                                            \
  struct alignas(2 * BYTES) NAME##2 { T x, y; };                                                     \
  struct NAME##3 { T x, y, z; };                                                                     \
  struct alignas(4 * BYTES > 16 ? 16 : 4 * BYTES) NAME##4 { T x, y, z, w; };                         \
  inline NAME##1 make_##NAME##1(T x) { return {x}; }                                                 \
  inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                                         \
  inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }                                 \
  inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMU_VECTOR(signed char, char, 1)
EMU_VECTOR(unsigned char, uchar, 1)
EMU_VECTOR(short, short, 2)
EMU_VECTOR(unsigned short, ushort, 2)
EMU_VECTOR(int, int, 4)
EMU_VECTOR(unsigned, uint, 4)
EMU_VECTOR(long, long, 8)
EMU_VECTOR(unsigned long, ulong, 8)
EMU_VECTOR(long long, longlong, 8)
EMU_VECTOR(unsigned long long, ulonglong, 8)
EMU_VECTOR(float, float, 4)
EMU_VECTOR(double, double, 8)
#undef EMU_VECTOR
