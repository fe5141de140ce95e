// Shared memory: the arrays of the block that runs, and those of blocks that were put aside.
#include <algorithm>
#include <cstdio>

#include "memory.h"

namespace emu {

uint8_t shared_state[SHARED_BYTES];

namespace {

struct Variable {
  int id;
  size_t offset, bytes;
  char name[64];
};
std::vector<Variable> variables;  // of the block's shared memory
size_t shared_used, shared_taken;
size_t dynamic_bytes;
size_t dirty_end;  // shared memory up to here has been used by an earlier block

}  // namespace

void locate_shared(emu_error& e, uintptr_t a) {
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
}
