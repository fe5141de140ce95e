// nvcuda::wmma: a warp's matrices. Lane l of a warp holds the l-th part of a fragment, row by row.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"

namespace nvcuda {
namespace wmma {
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32 {};
}  // namespace precision

namespace detail {
template <class T> struct element { using type = T; };
template <> struct element<precision::tf32> { using type = float; };
template <class T> struct code;
template <> struct code<__half> { static constexpr int value = EMU_F16; };
template <> struct code<__nv_bfloat16> { static constexpr int value = EMU_BF16; };
template <> struct code<precision::tf32> { static constexpr int value = EMU_TF32; };
template <> struct code<float> { static constexpr int value = EMU_F32; };
template <> struct code<signed char> { static constexpr int value = EMU_S8; };
template <> struct code<unsigned char> { static constexpr int value = EMU_U8; };
template <> struct code<int> { static constexpr int value = EMU_S32; };
template <> struct code<double> { static constexpr int value = EMU_F64; };
template <class Use, int M, int N, int K> struct shape { static constexpr int rows = M, columns = N; };
template <int M, int N, int K> struct shape<matrix_a, M, N, K> { static constexpr int rows = M, columns = K; };
template <int M, int N, int K> struct shape<matrix_b, M, N, K> { static constexpr int rows = K, columns = N; };
}  // namespace detail

template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment {
  using element_type = typename detail::element<T>::type;
  static constexpr int rows = detail::shape<Use, M, N, K>::rows, columns = detail::shape<Use, M, N, K>::columns;
  static constexpr int num_elements = rows * columns / 32;
  static constexpr bool by_column = std::is_same<Layout, col_major>::value;
  element_type x[num_elements];
};

template <class F, class V> inline void fill_fragment(F& f, V v) {
  for (auto& x : f.x) x = (typename F::element_type)v;
}

namespace detail {
// The pointer must be aligned to 32 bytes and the stride a multiple of 16 bytes.
template <class T> inline void matrix_at(int line, const T* p, unsigned stride, bool write) {
  emu_check_aligned(p, 32, write);
  if (stride * sizeof(T) % 16) emu_trap(line, "the stride of a WMMA matrix is a multiple of 16 bytes");
}
inline int lane() {
  return (int)((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32);
}
template <class F, class T> inline void load(int line, F& f, const T* p, unsigned stride, bool by_column) {
  emu_warp_sync(line, ~0u);
  matrix_at(line, p, stride, false);
  for (int i = 0; i < F::num_elements; i++) {
    const int at = lane() * F::num_elements + i, row = at / F::columns, column = at % F::columns;
    f.x[i] = by_column ? p[(size_t)column * stride + row] : p[(size_t)row * stride + column];
  }
}
template <class F, class T> inline void store(int line, T* p, const F& f, unsigned stride, bool by_column) {
  emu_warp_sync(line, ~0u);
  matrix_at(line, p, stride, true);
  for (int i = 0; i < F::num_elements; i++) {
    const int at = lane() * F::num_elements + i, row = at / F::columns, column = at % F::columns;
    p[by_column ? (size_t)column * stride + row : (size_t)row * stride + column] = f.x[i];
  }
}
template <int M, int N, int K, class D, class A, class LA, class B, class LB, class C>
inline void mma(int line, fragment<accumulator, M, N, K, D>& d, const fragment<matrix_a, M, N, K, A, LA>& a,
                const fragment<matrix_b, M, N, K, B, LB>& b, const fragment<accumulator, M, N, K, C>& c) {
  emu_wmma(line, M, N, K, code<A>::value, code<B>::value, code<C>::value, code<D>::value, d.x, a.x, b.x, c.x);
}
}  // namespace detail

// These are functions of the namespace; the line tells one use from another, for the report of a warp that parts.
template <class F, class T>
inline void load_matrix_sync(F& f, const T* p, unsigned stride, int line = __builtin_LINE()) {
  detail::load(line, f, p, stride, F::by_column);
}
template <class F, class T>
inline void load_matrix_sync(F& f, const T* p, unsigned stride, layout_t layout, int line = __builtin_LINE()) {
  detail::load(line, f, p, stride, layout == mem_col_major);
}
template <class F, class T>
inline void store_matrix_sync(T* p, const F& f, unsigned stride, layout_t layout, int line = __builtin_LINE()) {
  detail::store(line, p, f, stride, layout == mem_col_major);
}
template <class D, class A, class B, class C>
inline void mma_sync(D& d, const A& a, const B& b, const C& c, int line = __builtin_LINE()) {
  detail::mma(line, d, a, b, c);
}
inline float __float_to_tf32(float x) { return emu_::as<float>((emu_::as<uint32_t>(x) + 0x1000u) & 0xffffe000u); }
}  // namespace wmma
}  // namespace nvcuda
using nvcuda::wmma::__float_to_tf32;
