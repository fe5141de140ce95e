// Device memory: one range of addresses, handed out between red zones, with the state of every byte.
#include "memory.h"

#include <sys/mman.h>

#include <map>

namespace emu {

size_t GUARD, GLOBAL_BYTES;
char *shared_base, *global_base;
uint8_t* global_state;
uint32_t *global_writer, *global_reader, *global_when, *global_who;

namespace {

// Where much address space is not to be had (a limit, no overcommitting), smaller ranges are tried.
constexpr size_t GLOBAL_GIB[] = {8, 2, 1};

struct Buffer {
  size_t offset, bytes;
  int number;
};
std::map<size_t, Buffer> buffers;  // by offset
size_t global_used = REDZONE;

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

}  // namespace

void locate(emu_error& e, uintptr_t a) {
  e.buffer = -1;
  if (a >= (uintptr_t)shared_base - GUARD / 2 && a < (uintptr_t)shared_base + SHARED_BYTES + GUARD / 2) {
    locate_shared(e, a);
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

bool memory_prepare() {
  if (global_base) return true;
  for (size_t gib : GLOBAL_GIB)
    if (prepare_with(gib << 30)) return true;
  return false;
}

bool memory_contains(const void* p) {
  return (uintptr_t)p - ((uintptr_t)shared_base - GUARD) < 3 * GUARD + SHARED_BYTES + GLOBAL_BYTES;
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
}
