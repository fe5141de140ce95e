// Device memory with a shadow: which bytes exist, which were written, and by whom since the last barrier.
//
// Kernels are compiled with -fsanitize=thread, which calls __tsan_read4(p) and the like before every access to memory
// that is not a private variable. Those functions are defined here; ThreadSanitizer itself is not involved.
#include <dlfcn.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "state.h"

namespace emu {

Launch launch;
unsigned long long accesses = 0;

namespace {

enum Byte : uint8_t { NOTHING = 0, UNWRITTEN = 1, WRITTEN = 2, COMING = 3 };  // COMING: by cp.async

// One reserved range of addresses: guard, shared memory, guard, global memory, guard. An index computed with 32 bits
// stays inside it however wrong it is, and an access to a guard is reported, not a crash.
// Where that much address space is not to be had (a limit, no overcommitting), smaller ones are tried.
size_t GUARD, GLOBAL_BYTES;
constexpr size_t GLOBAL_GIB[] = {8, 2, 1};
constexpr size_t SHARED_BYTES = size_t(1) << 20;
constexpr size_t REDZONE = 256;

char* shared_base;
char* global_base;
uint8_t* global_state;
// Stamps of the last writer and reader: which block of which launch.
uint32_t* global_writer;
uint32_t* global_reader;
// Of the last write, within its block: barriers so far, and who (as of shared memory, below).
uint32_t *global_when, *global_who;
uint8_t shared_state[SHARED_BYTES];
// Of shared memory: when (barriers so far), and who: thread | times its warp had synchronised << 11.
uint32_t shared_write_when[SHARED_BYTES], shared_write_who[SHARED_BYTES];
uint32_t shared_read_when[SHARED_BYTES], shared_read_who[SHARED_BYTES];
constexpr uint32_t THREADS = 0x7ff, MANY = 0x7ff, ATOMIC = 0x7fe;
constexpr uint32_t ATOMICALLY = 0x80000000u;  // in a stamp of global memory

uint32_t epoch = 1;
uint32_t stamp_base = 1, stamp = 1, stamp_next = 1;
bool fenced = false;

struct Buffer {
  size_t offset, bytes;
  int number;
};
std::map<size_t, Buffer> buffers;  // by offset
size_t global_used = REDZONE;

struct Variable {
  int id;
  size_t offset, bytes;
  char name[64];
};
std::vector<Variable> variables;  // of the block's shared memory
size_t shared_used, shared_taken;
size_t dynamic_bytes;
size_t dirty_end;  // shared memory up to here has been used by an earlier block

// A write to what another thread wrote: a race only if it changes the value.
struct Pending {
  bool set = false;
  char* at;
  unsigned bytes;
  char old[64];
  emu_error error;
} pending;

void* reserve(size_t bytes, int protection) {
  void* p = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}

bool prepare_with(size_t global_bytes) {
  const size_t guard = 2 * global_bytes, whole = 3 * guard + SHARED_BYTES + global_bytes;
  auto* range = (char*)reserve(whole, PROT_NONE);
  if (!range) return false;
  char* shared = range + guard;
  char* global = shared + SHARED_BYTES + guard;
  void* shadow[5] = {};
  bool made = !mprotect(shared, SHARED_BYTES, PROT_READ | PROT_WRITE) && !mprotect(global, global_bytes, PROT_READ | PROT_WRITE);
  for (int i = 0; i < 5 && made; i++) made = (shadow[i] = reserve(global_bytes * (i ? 4 : 1), PROT_READ | PROT_WRITE));
  if (!made) {
    munmap(range, whole);
    for (int i = 0; i < 5; i++)
      if (shadow[i]) munmap(shadow[i], global_bytes * (i ? 4 : 1));
    return false;
  }
  GUARD = guard;
  GLOBAL_BYTES = global_bytes;
  shared_base = shared;
  global_state = (uint8_t*)shadow[0];
  global_writer = (uint32_t*)shadow[1];
  global_reader = (uint32_t*)shadow[2];
  global_when = (uint32_t*)shadow[3];
  global_who = (uint32_t*)shadow[4];
  global_base = global;
  return true;
}

void locate(emu_error& e, uintptr_t a) {
  e.buffer = -1;
  if (a >= (uintptr_t)shared_base - GUARD / 2 && a < (uintptr_t)shared_base + SHARED_BYTES + GUARD / 2) {
    e.space = EMU_SHARED;
    const auto offset = (long long)(a - (uintptr_t)shared_base);
    // The array that holds it, else the nearest.
    const Variable* best = nullptr;
    long long distance = 0;
    for (auto& v : variables) {
      long long d = offset < (long long)v.offset ? (long long)v.offset - offset
                    : offset >= (long long)(v.offset + v.bytes) ? offset - (long long)(v.offset + v.bytes) + 1
                                                                : 0;
      if (!best || d < distance) best = &v, distance = d;
    }
    if (best) {
      snprintf(e.name, sizeof e.name, "%s", best->name);
      e.offset = offset - (long long)best->offset;
      e.extent = best->bytes;
    } else {
      e.offset = offset;
    }
    return;
  }
  e.space = EMU_GLOBAL;
  const auto offset = (long long)(a - (uintptr_t)global_base);
  const Buffer* best = nullptr;
  long long distance = 0;
  for (auto& entry : buffers) {
    auto& b = entry.second;
    long long d = offset < (long long)b.offset ? (long long)b.offset - offset
                  : offset >= (long long)(b.offset + b.bytes) ? offset - (long long)(b.offset + b.bytes) + 1
                                                              : 0;
    if (!best || d < distance) best = &b, distance = d;
  }
  if (best) {
    e.buffer = best->number;
    e.offset = offset - (long long)best->offset;
    e.extent = best->bytes;
  }
}

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

emu_dim thread_of(uint32_t number) { return number < launch.count ? launch.threads[number].index : emu_dim{~0u, ~0u, ~0u}; }

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

[[gnu::noinline]] void race(int kind, uintptr_t a, unsigned size, int write, int other_write, uint32_t other, void* pc) {
  if (launch.limits.allow_races) return;
  if (write && other_write && (other & THREADS) != ATOMIC && !(kind == EMU_BLOCK_RACE && other & ATOMICALLY)) {
    // The same value written twice does no harm (threads that all store what all computed).
    if (pending.set || size > sizeof pending.old) return;
    emu_error keep = *launch.error;
    auto& e = describe(kind, a, size, write, pc);
    e.other_write = other_write;
    pending.error = e;
    *launch.error = keep;
    if (kind == EMU_RACE) pending.error.other_thread = thread_of(other & THREADS);
    else pending.error.other_block = {other - stamp_base, 0, 0};
    pending.set = true;
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

// Whether two threads are ordered by an operation that synchronised their warp in between.
inline bool ordered_in_warp(uint32_t who) {
  const uint32_t number = who & THREADS;
  return number < ATOMIC && number / 32 == launch.me / 32 && who >> 11 < launch.now->warp_epoch;
}

inline uint32_t myself() { return launch.me | launch.now->warp_epoch << 11; }

template <bool WRITE>
[[gnu::always_inline]] inline void shared_access(size_t offset, unsigned size, void* pc, bool atomic = false) {
  const uintptr_t a = (uintptr_t)shared_base + offset;
  const uint8_t* state = shared_state + offset;
  for (unsigned i = 0; i < size; i++)
    if (state[i] != WRITTEN) {
      state_fault(state, a, size, WRITE, pc);
      break;
    }
  const uint32_t now = epoch;
  if (WRITE) {
    for (unsigned i = 0; i < size; i++) {
      const size_t b = offset + i;
      if (shared_read_when[b] == now) {
        const uint32_t who = shared_read_who[b];
        if ((who & THREADS) != launch.me && !ordered_in_warp(who) && !(atomic && (who & THREADS) == ATOMIC)) {
          race(EMU_RACE, a + i, size, 1, 0, who, pc);
        }
      }
      if (shared_write_when[b] == now) {
        const uint32_t who = shared_write_who[b];
        if ((who & THREADS) != launch.me && (who & THREADS) != MANY && !ordered_in_warp(who) &&
            !(atomic && (who & THREADS) == ATOMIC)) {
          race(EMU_RACE, a, size, 1, 1, who, pc);
          if (!atomic) {
            for (unsigned j = 0; j < size; j++) shared_write_who[offset + j] = MANY;
            for (unsigned j = 0; j < size; j++) shared_write_when[offset + j] = now;
            break;
          }
        } else if ((who & THREADS) == MANY) {
          race(EMU_RACE, a, size, 1, 1, who, pc);
          break;
        }
      }
      shared_write_when[b] = now;
      shared_write_who[b] = atomic ? ATOMIC : myself();
    }
    memset((void*)state, WRITTEN, size);
  } else {
    for (unsigned i = 0; i < size; i++) {
      const size_t b = offset + i;
      if (shared_write_when[b] == now) {
        const uint32_t who = shared_write_who[b];
        if ((who & THREADS) != launch.me && (who & THREADS) != MANY && !ordered_in_warp(who)) {
          race(EMU_RACE, a + i, size, 0, 1, who, pc);
        }
      }
      if (shared_read_when[b] != now) {
        shared_read_when[b] = now;
        shared_read_who[b] = myself();
      } else if (uint32_t who = shared_read_who[b]; who != myself()) {
        // A later read by the same thread, or one ordered after the earlier, stands for it.
        shared_read_who[b] = (who & THREADS) == launch.me || ordered_in_warp(who) ? myself() : MANY;
      }
    }
  }
}

template <bool WRITE>
[[gnu::always_inline]] inline void global_access(size_t offset, unsigned size, void* pc, bool atomic = false) {
  const uintptr_t a = (uintptr_t)global_base + offset;
  uint8_t* state = global_state + offset;
  for (unsigned i = 0; i < size; i++)
    if (state[i] != WRITTEN) {
      state_fault(state, a, size, WRITE, pc);
      break;
    }
  const uint32_t mine = stamp | (atomic ? ATOMICALLY : 0);
  for (unsigned i = 0; i < size; i++) {
    const size_t b = offset + i;
    const uint32_t writer = global_writer[b], reader = global_reader[b];
    if ((writer & ~ATOMICALLY) >= stamp_base && (writer & ~ATOMICALLY) != stamp && !(atomic && writer & ATOMICALLY)) {
      // After a __threadfence blocks may hand each other data (the last block adds up the others' parts).
      if (!fenced) {
        race(EMU_BLOCK_RACE, WRITE ? a : a + i, size, WRITE, 1, writer, pc);
        if (WRITE) {
          for (unsigned j = 0; j < size; j++) global_writer[offset + j] = mine;
          break;
        }
      }
    } else if ((writer & ~ATOMICALLY) == stamp && global_when[b] == epoch) {
      const uint32_t who = global_who[b], other = who & THREADS;
      if (other != launch.me && other != MANY && !ordered_in_warp(who) && !(atomic && other == ATOMIC)) {
        race(EMU_RACE, WRITE ? a : a + i, size, WRITE, 1, who, pc);
        if (WRITE) {
          for (unsigned j = 0; j < size; j++) global_who[offset + j] = MANY;
          break;
        }
      } else if (WRITE && other == MANY) {
        race(EMU_RACE, a, size, 1, 1, who, pc);
        break;
      }
    }
    if (WRITE) {
      global_when[b] = epoch;
      global_who[b] = atomic ? ATOMIC : myself();
      if (reader >= stamp_base && reader != stamp && !fenced) race(EMU_BLOCK_RACE, a + i, size, 1, 0, reader, pc);
      global_writer[b] = mine;
    } else {
      global_reader[b] = stamp;
    }
  }
  if (WRITE) memset(state, WRITTEN, size);
}

template <bool WRITE>
[[gnu::always_inline]] inline void access(const void* p, unsigned size, void* pc, bool atomic = false) {
  if (__builtin_expect(pending.set, 0)) memory_settle();
  if (__builtin_expect((++accesses & 0xfffff) == 0, 0)) check_time();
  const auto a = (uintptr_t)p;
  if (a - (uintptr_t)global_base <= GLOBAL_BYTES - size) {
    global_access<WRITE>(a - (uintptr_t)global_base, size, pc, atomic);
  } else if (a - (uintptr_t)shared_base <= SHARED_BYTES - size) {
    shared_access<WRITE>(a - (uintptr_t)shared_base, size, pc, atomic);
  } else if (a - ((uintptr_t)shared_base - GUARD) < 3 * GUARD + SHARED_BYTES + GLOBAL_BYTES) {
    describe(EMU_OUT_OF_BOUNDS, a, size, WRITE, pc);
    fail();
  }
  // Anything else: a private array, a constant of the source; a wild pointer ends in a signal.
}

}  // namespace

bool memory_prepare() {
  if (global_base) return true;
  for (size_t gib : GLOBAL_GIB)
    if (prepare_with(gib << 30)) return true;
  return false;
}

void memory_settle() {
  if (!pending.set) return;
  pending.set = false;
  if (!memcmp(pending.old, pending.at, pending.bytes)) return;
  *launch.error = pending.error;
  fail();
}

bool memory_contains(const void* p) {
  return (uintptr_t)p - ((uintptr_t)shared_base - GUARD) < 3 * GUARD + SHARED_BYTES + GLOBAL_BYTES;
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
  pending.set = false;
}

void memory_new_block(unsigned number, unsigned dynamic_shared) {
  stamp = stamp_base + number;
  memory_barrier();
  memset(shared_state, NOTHING, dirty_end);
  variables.clear();
  shared_used = REDZONE;
  shared_taken = 0;
  dynamic_bytes = dynamic_shared;
}

struct SharedMemory {
  std::vector<char> bytes;
  std::vector<uint8_t> state;
  std::vector<Variable> variables;
  size_t used, taken;
};

// Who accessed what since the block's last barrier is not kept: the epoch that it belongs to is over when others ran.
SharedMemory* memory_put_aside() {
  auto* m = new SharedMemory{{shared_base, shared_base + shared_used}, {shared_state, shared_state + shared_used},
                             variables, shared_used, shared_taken};
  return m;
}

void memory_take_up(SharedMemory* m, unsigned number) {
  memory_new_block(number, (unsigned)dynamic_bytes);
  memcpy(shared_base, m->bytes.data(), m->used);
  memcpy(shared_state, m->state.data(), m->used);
  variables = m->variables;
  shared_used = m->used;
  shared_taken = m->taken;
  dirty_end = std::max(dirty_end, shared_used);
  delete m;
}

void memory_forget(SharedMemory* m) { delete m; }

void memory_barrier() {
  if (++epoch == 0) {  // never in practice
    memset(shared_write_when, 0, sizeof shared_write_when);
    memset(shared_read_when, 0, sizeof shared_read_when);
    epoch = 1;
  }
}

static void* shared_new(int id, size_t bytes, size_t align, const char* name) {
  auto& l = launch;
  align = std::max<size_t>(align, 32);
  shared_used = (shared_used + align - 1) / align * align;
  shared_taken += bytes;
  if (shared_taken > l.limits.shared_bytes || shared_used + bytes + REDZONE > SHARED_BYTES) {
    auto& e = report(EMU_SHARED_LIMIT);
    e.space = EMU_SHARED;
    e.offset = (long long)shared_taken;
    e.extent = l.limits.shared_bytes;
    snprintf(e.name, sizeof e.name, "%s", name);
    fail();
  }
  Variable v{id, shared_used, bytes, {}};
  snprintf(v.name, sizeof v.name, "%s", name);
  variables.push_back(v);
  memset(shared_state + v.offset, UNWRITTEN, bytes);
  memset(shared_base + v.offset, 0xff, bytes);  // NaN in every floating type
  shared_used += bytes + REDZONE;
  dirty_end = std::max(dirty_end, shared_used);
  return shared_base + v.offset;
}

}  // namespace emu

using namespace emu;

extern "C" {

void* emu_allocate(unsigned long long bytes, int buffer) {
  if (!memory_prepare()) return nullptr;
  const size_t offset = global_used, page = 4096;
  const size_t next = (offset + bytes + REDZONE + page - 1) / page * page + REDZONE;
  if (next > GLOBAL_BYTES) return nullptr;
  global_used = next;
  buffers[offset] = {offset, bytes, buffer};
  emu_mark(global_base + offset, bytes, 0);
  memset(global_base + offset, 0xff, bytes);
  return global_base + offset;
}

void emu_release(void* p) {
  auto found = buffers.find((size_t)((char*)p - global_base));
  if (found == buffers.end()) return;
  memset(global_state + found->second.offset, NOTHING, found->second.bytes);
  buffers.erase(found);
  // Memory is handed out upwards; what lies free at the end is taken back.
  global_used = REDZONE;
  if (!buffers.empty()) {
    auto& last = buffers.rbegin()->second;
    global_used = (last.offset + last.bytes + REDZONE + 4095) / 4096 * 4096 + REDZONE;
  }
}

void emu_mark(void* p, unsigned long long bytes, int initialised) {
  memset(global_state + ((char*)p - global_base), initialised ? WRITTEN : UNWRITTEN, bytes);
}

long long emu_unwritten(const void* p, unsigned long long bytes, unsigned long long* count) {
  const uint8_t* state = global_state + ((const char*)p - global_base);
  long long first = -1;
  *count = 0;
  for (unsigned long long i = 0; i < bytes; i++)
    if (state[i] != WRITTEN) {
      if (first < 0) first = (long long)i;
      ++*count;
    }
  return first;
}

void emu_written(const void* p, unsigned long long bytes, uint8_t* written) {
  const uint8_t* state = global_state + ((const char*)p - global_base);
  for (unsigned long long i = 0; i < bytes; i++) written[i] = state[i] == WRITTEN;
}

void emu_fence() { fenced = true; }

void* emu_shared(int id, size_t bytes, size_t align, const char* name) {
  for (auto& v : variables)
    if (v.id == id) return shared_base + v.offset;
  return shared_new(id, bytes, align, name);
}

void* emu_shared_dynamic(const char* name) { return emu_shared(-1, dynamic_bytes, 128, name); }

uint32_t emu_shared_address(const void* p) {
  const size_t offset = (size_t)((const char*)p - shared_base);
  if (offset < SHARED_BYTES) return (uint32_t)offset;
  auto& e = report(EMU_OUT_OF_BOUNDS);
  locate(e, (uintptr_t)p);
  snprintf(e.text, sizeof e.text, "its address is taken as one of shared memory");
  fail();
}

void* emu_shared_pointer(uint64_t address) {
  // Some sources pass the generic address where the one in shared memory is due; the hardware takes the low bits.
  return shared_base + (uint32_t)address;
}

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

void emu_cp_async(int line, uint64_t shared, const void* source, unsigned bytes, unsigned valid) {
  launch.hint = line;
  char* to = (char*)emu_shared_pointer(shared);
  if (!launch.limits.unchecked) {
    emu_check_aligned(to, bytes, 1);
    if (valid) {
      emu_check_aligned(source, bytes, 0);
      access<false>(source, valid, nullptr);
    }
    access<true>(to, bytes, nullptr);  // from now on nobody else may touch it
    memory_settle();
  }
  const size_t offset = (size_t)(to - shared_base);
  memset(shared_state + offset, COMING, bytes);
  memset(to, 0xff, bytes);
  auto& t = *launch.now;
  t.copies.push_back({(unsigned)offset, bytes, valid, (const char*)source});
  t.open++;
}

void emu_cp_async_commit() {
  auto& t = *launch.now;
  t.groups.push_back(t.open);
  t.open = 0;
}

static void deliver(Thread& t, size_t copies) {
  for (size_t i = 0; i < copies; i++) {
    auto& c = t.copies[i];
    memcpy(shared_base + c.to, c.from, c.valid);
    memset(shared_base + c.to + c.valid, 0, c.bytes - c.valid);
    for (unsigned j = 0; j < c.bytes; j++) {
      const size_t b = c.to + j;
      shared_state[b] = WRITTEN;
      shared_write_when[b] = epoch;
      shared_write_who[b] = myself();
    }
  }
  t.copies.erase(t.copies.begin(), t.copies.begin() + (long)copies);
}

void emu_cp_async_wait(unsigned groups) {
  auto& t = *launch.now;
  if (t.groups.size() <= groups) return;
  const size_t done = t.groups.size() - groups;
  size_t copies = 0;
  for (size_t i = 0; i < done; i++) copies += t.groups[i];
  t.groups.erase(t.groups.begin(), t.groups.begin() + (long)done);
  deliver(t, copies);
}

void emu_cp_async_wait_all() {
  auto& t = *launch.now;
  deliver(t, t.copies.size());
  t.groups.clear();
  t.open = 0;
}

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
