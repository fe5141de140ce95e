// What every access to memory is checked for: bounds, memory nobody wrote, races of threads and of blocks.
#pragma once
#include "memory.h"

#pragma GCC visibility push(hidden)
namespace emu {

extern bool suspected;  // a write that may have been a race is not settled yet
void race(int kind, uintptr_t a, unsigned size, int write, int other_write, uint32_t other, void* pc);

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
  if (__builtin_expect(suspected, 0)) memory_settle();
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

}  // namespace emu
#pragma GCC visibility pop
