// Memory of the emulated device and its shadow: which bytes exist, which were written, and by whom since when.
// memory.cc has device memory, shared.cc that of a block, access.* what every access is checked for.
#pragma once
#include "state.h"

#pragma GCC visibility push(hidden)
namespace emu {

enum Byte : uint8_t { NOTHING = 0, UNWRITTEN = 1, WRITTEN = 2, COMING = 3 };  // COMING: by cp.async

// One reserved range of addresses: guard, shared memory, guard, global memory, guard. An index computed with 32 bits
// stays inside it however wrong it is, and an access to a guard is reported, not a crash.
extern size_t GUARD, GLOBAL_BYTES;
constexpr size_t SHARED_BYTES = size_t(1) << 20;
constexpr size_t REDZONE = 256;

extern char *shared_base, *global_base;
extern uint8_t* global_state;
// Stamps of the last writer and reader: which block of which launch.
extern uint32_t *global_writer, *global_reader;
// Of the last write, within its block: barriers so far, and who (as of shared memory, below).
extern uint32_t *global_when, *global_who;
extern uint8_t shared_state[SHARED_BYTES];
// Of shared memory: when (barriers so far), and who: thread | times its warp had synchronised << 11.
extern uint32_t shared_write_when[SHARED_BYTES], shared_write_who[SHARED_BYTES];
extern uint32_t shared_read_when[SHARED_BYTES], shared_read_who[SHARED_BYTES];
constexpr uint32_t THREADS = 0x7ff, MANY = 0x7ff, ATOMIC = 0x7fe;
constexpr uint32_t ATOMICALLY = 0x80000000u;  // in a stamp of global memory

extern uint32_t epoch;
extern uint32_t stamp_base, stamp, stamp_next;
extern bool fenced;

void locate(emu_error& e, uintptr_t a);         // the buffer or array of an address, or the nearest
void locate_shared(emu_error& e, uintptr_t a);  // the same, of shared memory
emu_error& describe(int kind, uintptr_t a, unsigned size, int write, void* pc);
unsigned long long place(void* pc);             // offset of an instruction in its library
void state_fault(const uint8_t* state, uintptr_t a, unsigned size, int write, void* pc);

}  // namespace emu
#pragma GCC visibility pop
