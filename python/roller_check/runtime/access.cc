// Faults of accesses, races, and the accesses that emulated instructions make.
#include "access.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <time.h>

namespace emu {

Launch launch;
unsigned long long accesses = 0;
uint32_t shared_write_when[SHARED_BYTES], shared_write_who[SHARED_BYTES];
uint32_t shared_read_when[SHARED_BYTES], shared_read_who[SHARED_BYTES];
uint32_t epoch = 1;
uint32_t stamp_base = 1, stamp = 1, stamp_next = 1;
bool fenced = false, suspected = false;

namespace {

// A write to what another thread wrote: a race only if it changes the value.
struct Pending {
  char* at;
  unsigned bytes;
  char old[64];
  emu_error error;
} pending;

emu_dim thread_of(uint32_t number) { return number < launch.count ? launch.threads[number].index : emu_dim{~0u, ~0u, ~0u}; }

}  // namespace

unsigned long long place(void* pc) {
  Dl_info info;
  static Dl_info own;
  if (!own.dli_fbase) dladdr((void*)place, &own);
  if (!pc || !dladdr(pc, &info) || info.dli_fbase == own.dli_fbase) return 0;  // an access made for an instruction
  return (unsigned long long)((char*)pc - (char*)info.dli_fbase) - 1;
}

emu_error& describe(int kind, uintptr_t a, unsigned size, int write, void* pc) {
  auto& e = report(kind);
  locate(e, a);
  e.size = size;
  e.write = write;
  e.pc = place(pc);
  if (!e.pc) e.line = launch.hint;
  return e;
}

void state_fault(const uint8_t* state, uintptr_t a, unsigned size, int write, void* pc) {
  int kind = EMU_OUT_OF_BOUNDS;
  unsigned i = 0;
  for (; i < size; i++) {
    if (state[i] == NOTHING) break;
  }
  if (i == size) {
    if (write) return;  // to memory that exists: what is coming is the pipeline's business, see below
    for (i = 0; i < size && state[i] != COMING; i++) {}
    if (i < size) {
      kind = EMU_IN_FLIGHT;
    } else {
      for (i = 0; i < size && state[i] != UNWRITTEN; i++) {}
      kind = EMU_UNINITIALISED;
      if (i == size || launch.limits.allow_uninitialised) return;
    }
  }
  auto& e = describe(kind, a + i, size, write, pc);
  (void)e;
  fail();
}

void race(int kind, uintptr_t a, unsigned size, int write, int other_write, uint32_t other, void* pc) {
  if (launch.limits.allow_races) return;
  const bool by_atomic = kind == EMU_BLOCK_RACE ? other & ATOMICALLY : (other & THREADS) == ATOMIC;
  if (write && other_write && !by_atomic) {
    // The same value written twice does no harm (threads that all store what all computed).
    if (suspected || size > sizeof pending.old) return;
    emu_error keep = *launch.error;
    auto& e = describe(kind, a, size, write, pc);
    e.other_write = other_write;
    pending.error = e;
    *launch.error = keep;
    if (kind == EMU_RACE) pending.error.other_thread = thread_of(other & THREADS);
    else pending.error.other_block = {other - stamp_base, 0, 0};
    suspected = true;
    pending.at = (char*)a;
    pending.bytes = size;
    memcpy(pending.old, (char*)a, size);
    return;
  }
  auto& e = describe(kind, a, size, write, pc);
  e.other_write = other_write;
  if (kind == EMU_RACE) e.other_thread = thread_of(other & THREADS);
  else e.other_block = {(other & ~ATOMICALLY) - stamp_base, 0, 0};
  fail();
}

void memory_settle() {
  if (!suspected) return;
  suspected = false;
  if (!memcmp(pending.old, pending.at, pending.bytes)) return;
  *launch.error = pending.error;
  fail();
}

void check_time() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  if (launch.running && t.tv_sec + t.tv_nsec * 1e-9 > launch.deadline) {
    report(EMU_TIMEOUT);
    fail();
  }
}

void memory_new_launch(unsigned blocks) {
  if (stamp_next > 0x70000000u - blocks) {
    // Stamps have run out: forget all of them.
    madvise(global_writer, GLOBAL_BYTES * 4, MADV_DONTNEED);
    madvise(global_reader, GLOBAL_BYTES * 4, MADV_DONTNEED);
    stamp_next = 1;
  }
  stamp_base = stamp_next;
  stamp_next += blocks;
  fenced = false;
  suspected = false;
}

void memory_barrier() {
  if (++epoch == 0) {  // never in practice
    memset(shared_write_when, 0, sizeof shared_write_when);
    memset(shared_read_when, 0, sizeof shared_read_when);
    epoch = 1;
  }
}

}  // namespace emu

using namespace emu;

extern "C" {

void emu_fence() { fenced = true; }

void emu_check(const void* p, unsigned bytes, int write) {
  if (launch.limits.unchecked) return;
  if (write) access<true>(p, bytes, __builtin_return_address(0));
  else access<false>(p, bytes, __builtin_return_address(0));
}

void emu_check_aligned(const void* p, unsigned bytes, int write) {
  if (!launch.limits.unchecked && memory_contains(p) && (uintptr_t)p % bytes) {
    describe(EMU_MISALIGNED, (uintptr_t)p, bytes, write, __builtin_return_address(0));
    fail();
  }
}

void emu_check_atomic(void* p, unsigned bytes) {
  if (launch.limits.unchecked) return;
  emu_check_aligned(p, bytes, 1);
  uint8_t* state = nullptr;
  const auto a = (uintptr_t)p;
  if (a - (uintptr_t)global_base <= GLOBAL_BYTES - bytes) state = global_state + (a - (uintptr_t)global_base);
  if (a - (uintptr_t)shared_base <= SHARED_BYTES - bytes) state = shared_state + (a - (uintptr_t)shared_base);
  if (state)
    for (unsigned i = 0; i < bytes; i++)
      if (state[i] != WRITTEN) state_fault(state, a, bytes, 0, __builtin_return_address(0));
  access<true>(p, bytes, __builtin_return_address(0), true);
}
}
