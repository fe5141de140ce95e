// cp.async: copies into shared memory that arrive when they are waited for.
#include "access.h"

using namespace emu;

extern "C" {

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
}
