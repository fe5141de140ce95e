// Kernels are compiled with -fsanitize=thread, which calls __tsan_read4(p) and the like before every access to memory
// that is not a private variable. Those functions are defined here; ThreadSanitizer itself is not involved.
#include "access.h"

using namespace emu;

extern "C" {

// What -fsanitize=thread calls.
#define EMU_HOOK(N)                                                                       \
  void __tsan_read##N(void* p) { access<false>(p, N, __builtin_return_address(0)); }      \
  void __tsan_write##N(void* p) { access<true>(p, N, __builtin_return_address(0)); }      \
  void __tsan_unaligned_read##N(void* p) { access<false>(p, N, __builtin_return_address(0)); } \
  void __tsan_unaligned_write##N(void* p) { access<true>(p, N, __builtin_return_address(0)); } \
  void __tsan_volatile_read##N(void* p) { access<false>(p, N, __builtin_return_address(0)); }  \
  void __tsan_volatile_write##N(void* p) { access<true>(p, N, __builtin_return_address(0)); }
EMU_HOOK(1)
EMU_HOOK(2)
EMU_HOOK(4)
EMU_HOOK(8)
EMU_HOOK(16)
void __tsan_read_range(void* p, size_t n) { access<false>(p, (unsigned)n, __builtin_return_address(0)); }
void __tsan_write_range(void* p, size_t n) { access<true>(p, (unsigned)n, __builtin_return_address(0)); }
void* __tsan_memcpy(void* to, const void* from, size_t n) {
  access<false>(from, (unsigned)n, __builtin_return_address(0));
  access<true>(to, (unsigned)n, __builtin_return_address(0));
  return memcpy(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, size_t n) {
  access<false>(from, (unsigned)n, __builtin_return_address(0));
  access<true>(to, (unsigned)n, __builtin_return_address(0));
  return memmove(to, from, n);
}
void* __tsan_memset(void* to, int value, size_t n) {
  access<true>(to, (unsigned)n, __builtin_return_address(0));
  return memset(to, value, n);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

// What -fsanitize=alignment,bounds calls (the first fields of its records are the place in the source).
struct ubsan_place {
  const char* file;
  uint32_t line, column;
};
struct ubsan_mismatch {
  ubsan_place place;
  const void* type;
  uint8_t log_alignment, kind;
};
void __ubsan_handle_type_mismatch_v1(ubsan_mismatch* m, uintptr_t p) {
  if (!launch.running) return;
  auto& e = describe(EMU_MISALIGNED, p, 1u << m->log_alignment, m->kind == 1, __builtin_return_address(0));
  e.line = (int)m->place.line;
  if (!memory_contains((void*)p)) {
    e.space = EMU_NOWHERE;
    e.buffer = -1;
  }
  fail();
}
void __ubsan_handle_out_of_bounds(ubsan_place* m, uintptr_t index) {
  if (!launch.running) return;
  auto& e = report(EMU_OUT_OF_BOUNDS);
  e.line = (int)m->line;
  e.offset = (long long)index;
  e.space = EMU_NOWHERE;
  e.buffer = -1;
  e.pc = place(__builtin_return_address(0));
  fail();
}
void __ubsan_handle_type_mismatch_v1_abort(ubsan_mismatch* m, uintptr_t p) { __ubsan_handle_type_mismatch_v1(m, p); }
void __ubsan_handle_out_of_bounds_abort(ubsan_place* m, uintptr_t i) { __ubsan_handle_out_of_bounds(m, i); }
}
