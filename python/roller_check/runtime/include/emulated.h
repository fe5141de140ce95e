// Included before every source: CUDA C++ as far as generated kernels use it, for a C++ compiler of the CPU.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>

#include "../emulator.h"

#define __CUDACC__ 1
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 4
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __grid_constant__
// Threads that change what a pointer sees while this one waits at a barrier are nothing `restrict` allows for.
#define __restrict__
#define __restrict

#define warpSize 32

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

#include "emulated_types.h"
#include "emulated_math.h"

// Barriers and warps. The line tells one barrier from another.
#define __syncthreads() ((void)emu_barrier(__LINE__, 0, 0))
#define __syncthreads_count(p) ((int)emu_barrier(__LINE__, 1, (p) != 0))
#define __syncthreads_and(p) ((int)emu_barrier(__LINE__, 2, (p) != 0))
#define __syncthreads_or(p) ((int)emu_barrier(__LINE__, 3, (p) != 0))
#define __barrier_sync(id) ((void)emu_barrier(__LINE__, 0, 0))
#define __trap() emu_trap(__LINE__, "__trap() was called")
#undef assert
#define assert(c) ((c) ? (void)0 : emu_trap(__LINE__, "assertion failed: " #c))

namespace emu_ {
inline unsigned full_or(unsigned mask = ~0u) { return mask; }
template <class T>
inline T shuffle(int line, int how, unsigned mask, T value, unsigned operand, int width = 32) {
  static_assert(sizeof(T) <= 8, "a shuffle moves up to 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = emu_shuffle(line, how, mask, bits, operand, width);
  memcpy(&value, &bits, sizeof(T));
  return value;
}
template <class T>
inline unsigned match(int line, unsigned mask, T value, int how = 3) {
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  return emu_vote(line, how, mask, bits);
}
template <class T>
inline unsigned match_all(int line, unsigned mask, T value, int* all) {
  const unsigned found = match(line, mask, value, 5);
  *all = found != 0;
  return found;
}
template <class T>
inline T reduce(int line, int how, unsigned mask, T value) {
  static_assert(std::is_integral<T>::value && sizeof(T) == 4, "a warp reduces integers of 32 bits");
  return (T)emu_vote(line, how, mask, (uint64_t)(int64_t)value);
}
}  // namespace emu_
#define __shfl_sync(mask, ...) emu_::shuffle(__LINE__, 0, mask, __VA_ARGS__)
#define __shfl_up_sync(mask, ...) emu_::shuffle(__LINE__, 1, mask, __VA_ARGS__)
#define __shfl_down_sync(mask, ...) emu_::shuffle(__LINE__, 2, mask, __VA_ARGS__)
#define __shfl_xor_sync(mask, ...) emu_::shuffle(__LINE__, 3, mask, __VA_ARGS__)
#define __ballot_sync(mask, p) emu_vote(__LINE__, 0, mask, (p) != 0)
#define __any_sync(mask, p) ((int)emu_vote(__LINE__, 1, mask, (p) != 0))
#define __all_sync(mask, p) ((int)emu_vote(__LINE__, 2, mask, (p) != 0))
#define __match_any_sync(mask, v) emu_::match(__LINE__, mask, v)
#define __match_all_sync(mask, v, all) emu_::match_all(__LINE__, mask, v, all)
#define __reduce_add_sync(mask, v) emu_::reduce(__LINE__, 6, mask, v)
#define __reduce_min_sync(mask, v) emu_::reduce(__LINE__, 7, mask, v)
#define __reduce_max_sync(mask, v) emu_::reduce(__LINE__, 8, mask, v)
#define __reduce_and_sync(mask, v) emu_::reduce(__LINE__, 9, mask, v)
#define __reduce_or_sync(mask, v) emu_::reduce(__LINE__, 10, mask, v)
#define __reduce_xor_sync(mask, v) emu_::reduce(__LINE__, 11, mask, v)
#define __activemask() emu_activemask(__LINE__)
#define __syncwarp(...) emu_warp_sync(__LINE__, emu_::full_or(__VA_ARGS__))

inline void __threadfence() { emu_fence(); }
inline void __threadfence_block() {}
inline void __threadfence_system() { emu_fence(); }
// What polls sleeps in between: the blocks it waits for run meanwhile.
inline void __nanosleep(unsigned) { emu_poll(); }
inline long long clock64() { return 0; }
inline int clock() { return 0; }

inline size_t __cvta_generic_to_shared(const void* p) { return emu_shared_address(p); }
inline void* __cvta_shared_to_generic(size_t a) { return emu_shared_pointer(a); }
inline unsigned __isGlobal(const void*) { return 1; }

// Loads with a cache hint are loads.
template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldca(const T* p) { return *p; }
template <class T> inline T __ldcg(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline T __ldlu(const T* p) { return *p; }
template <class T> inline T __ldcv(const T* p) { return *p; }
template <class T> inline void __stwb(T* p, T v) { *p = v; }
template <class T> inline void __stcg(T* p, T v) { *p = v; }
template <class T> inline void __stcs(T* p, T v) { *p = v; }

// Atomics: one thread runs at a time, so plain C++ does; the check knows that they are atomic.
namespace emu_ {
template <class T, class F>
__attribute__((noinline, no_sanitize("thread"))) T atomically(T* p, F change) {
  emu_check_atomic(p, sizeof(T));
  T old;
  memcpy((void*)&old, (const void*)p, sizeof(T));
  T fresh = change(old);
  memcpy((void*)p, (const void*)&fresh, sizeof(T));
  return old;
}
template <class T> struct same { using type = T; };
template <class T> using same_t = typename same<T>::type;
}  // namespace emu_
#define EMU_ATOMIC(NAME, ...)                                             \
  template <class T> inline T NAME(T* p, emu_::same_t<T> v) {             \
    return emu_::atomically(p, [=](T old) -> T { return __VA_ARGS__; });  \
  }                                                                       \
  template <class T> inline T NAME(volatile T* p, emu_::same_t<T> v) { return NAME((T*)p, v); }
EMU_ATOMIC(atomicAdd, T(old + v))
EMU_ATOMIC(atomicSub, T(old - v))
EMU_ATOMIC(atomicExch, v)
EMU_ATOMIC(atomicMin, v < old ? v : old)
EMU_ATOMIC(atomicMax, old < v ? v : old)
EMU_ATOMIC(atomicAnd, T(old & v))
EMU_ATOMIC(atomicOr, T(old | v))
EMU_ATOMIC(atomicXor, T(old ^ v))
EMU_ATOMIC(atomicInc, old >= v ? T(0) : T(old + 1))
EMU_ATOMIC(atomicDec, old == 0 || old > v ? v : T(old - 1))
// Narrower or wider scopes are the same here.
#define atomicAdd_block atomicAdd
#define atomicAdd_system atomicAdd
#define atomicMax_block atomicMax
#define atomicMin_block atomicMin
#define atomicExch_block atomicExch
#define atomicCAS_block atomicCAS
#define atomicOr_block atomicOr
#define atomicAnd_block atomicAnd
template <class T> inline T atomicCAS(T* p, emu_::same_t<T> expected, emu_::same_t<T> v) {
  return emu_::atomically(p, [=](T old) -> T { return old == expected ? v : old; });
}

// What inline PTX becomes (python/roller_check/translate.py writes the calls).
namespace emu_ptx {
template <class T> inline uint32_t in32(T v) {
  static_assert(sizeof(T) <= 4, "an operand of 32 bits");
  uint32_t bits = 0;
  memcpy(&bits, &v, sizeof(T));
  return bits;
}
template <class T> inline uint32_t in_r(T v) {
  // "r" takes integers of any width that fit, and registers that hold a float or two halves.
  if constexpr (std::is_integral<T>::value) return (uint32_t)v;
  else return in32(v);
}
template <class T> inline uint64_t in64(T v) {
  if constexpr (std::is_pointer<T>::value) return (uint64_t)(uintptr_t)v;
  else if constexpr (std::is_integral<T>::value) return (uint64_t)v;
  else {
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof(T));
    return bits;
  }
}
template <class T, class B> inline void out(T& to, B bits) {
  static_assert(sizeof(T) <= sizeof(B), "a result fits its operand");
  T v;
  memcpy((void*)&v, &bits, sizeof(T));
  to = v;
}
template <class T> __attribute__((no_sanitize("thread"))) inline T load(int shared, uint64_t address, int) {
  T v;
  const void* p = shared ? emu_shared_pointer(address) : (const void*)(uintptr_t)address;
  emu_check_aligned(p, sizeof(T), 0);
  emu_check(p, sizeof(T), 0);
  memcpy(&v, p, sizeof(T));
  return v;
}
template <class T> __attribute__((no_sanitize("thread"))) inline void store(int shared, uint64_t address, T v, int) {
  void* p = shared ? emu_shared_pointer(address) : (void*)(uintptr_t)address;
  emu_check(p, sizeof(T), 1);
  memcpy(p, &v, sizeof(T));
}
inline void align(int shared, uint64_t address, unsigned bytes) {
  emu_check_aligned(shared ? emu_shared_pointer(address) : (const void*)(uintptr_t)address, bytes, 0);
}
}  // namespace emu_ptx

// From a list of pointers to arguments to a call.
namespace emu_ {
template <class... P, size_t... I>
inline void call(void (*kernel)(P...), void** a, std::index_sequence<I...>) {
  kernel(*(std::remove_reference_t<P>*)a[I]...);
}
template <class... P> inline void call(void (*kernel)(P...), void** a) {
  call(kernel, a, std::index_sequence_for<P...>());
}
}  // namespace emu_
