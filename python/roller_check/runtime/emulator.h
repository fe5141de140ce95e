// What a kernel compiled for the CPU asks of the emulator: the interface between generated code and emulator.cc.
#pragma once
#include <cstddef>
#include <cstdint>

struct emu_dim {
  unsigned x, y, z;
};

enum emu_kind {
  EMU_OK = 0,
  EMU_OUT_OF_BOUNDS = 1,
  EMU_UNINITIALISED = 2,
  EMU_IN_FLIGHT = 3,      // a copy by cp.async that nobody has waited for
  EMU_RACE = 4,           // two threads of a block, no barrier between them
  EMU_BLOCK_RACE = 5,     // two blocks of a launch
  EMU_DIVERGENT = 6,      // threads of a block wait at different barriers, or have left
  EMU_WARP_DIVERGENT = 7, // lanes of a warp do not meet at an operation of the whole warp
  EMU_MISALIGNED = 8,
  EMU_CRASH = 9,          // a signal
  EMU_TIMEOUT = 10,
  EMU_TRAP = 11,
  EMU_SHARED_LIMIT = 12,
};

enum emu_space { EMU_NOWHERE = 0, EMU_GLOBAL = 1, EMU_SHARED = 2 };

// All a report says. `name` is the shared array's; global buffers are numbers, the caller knows their names.
struct emu_error {
  int kind, space, line, other_line;
  int buffer;               // of global memory; -1: none
  int write, other_write;   // what this and the other thread did
  unsigned size;            // bytes of the access
  long long offset;         // bytes from the start of the buffer or array
  unsigned long long extent; // bytes of the buffer or array
  emu_dim block, thread, other_block, other_thread;
  unsigned waiting, arrived, gone;  // threads at the barrier, elsewhere, that have left
  int signal;
  unsigned long long pc;    // offset of the access in its library
  char name[64];
  char text[160];
};

struct emu_limits {
  double seconds;            // of one launch
  unsigned shared_bytes;     // of a block, static and dynamic
  int allow_uninitialised;   // a read of memory nobody wrote is let pass (it is NaN)
  int allow_races;
  int unchecked;             // the kernel was compiled without checks: make none for instructions either
};

extern "C" {
// Indices are constant to a thread, though the variable behind them changes whenever another thread runs.
extern const emu_dim threadIdx __asm__("emu_thread_idx");
extern const emu_dim blockIdx __asm__("emu_block_idx");
extern const emu_dim blockDim __asm__("emu_block_dim");
extern const emu_dim gridDim __asm__("emu_grid_dim");

// Host side: memory of the device, launches.
void* emu_allocate(unsigned long long bytes, int buffer);
void emu_release(void* p);
void emu_mark(void* p, unsigned long long bytes, int initialised);
long long emu_unwritten(const void* p, unsigned long long bytes, unsigned long long* count);
void emu_written(const void* p, unsigned long long bytes, uint8_t* written);
// Blocks by number, x fastest; all of them where `chosen` is null.
int emu_launch(void (*kernel)(void**), void** arguments, const unsigned* grid, const unsigned* block,
               const unsigned* chosen, unsigned chosen_count, unsigned dynamic_shared, const emu_limits* limits,
               emu_error* error);

// Threads of a block.
unsigned emu_barrier(int line, int how, unsigned value);  // how: 0 plain, 1 count, 2 and, 3 or
void emu_barrier_of(int line, unsigned number, unsigned threads);  // bar.sync number, threads
void emu_poll();  // a thread that waits for what another block writes: others have their turn
void emu_trap(int line, const char* text);
void emu_fence();

// Memory of a block.
void* emu_shared(int id, size_t bytes, size_t align, const char* name);
void* emu_shared_dynamic(const char* name);
uint32_t emu_shared_address(const void* p);
void* emu_shared_pointer(uint64_t address);
void emu_check(const void* p, unsigned bytes, int write);   // an access made by emulated code
void emu_check_aligned(const void* p, unsigned bytes, int write);
void emu_check_atomic(void* p, unsigned bytes);
void emu_cp_async(int line, uint64_t shared, const void* source, unsigned bytes, unsigned valid);
void emu_cp_async_commit();
void emu_cp_async_wait(unsigned groups);  // all but the latest so many groups of this thread
void emu_cp_async_wait_all();

// Operations of a warp. Every lane named by the mask arrives before any leaves.
uint64_t emu_shuffle(int line, int how, unsigned mask, uint64_t value, unsigned operand, int width);
// how: 0 ballot, 1 any, 2 all, 3 match any, 4 none, 5 match all, 6 to 11 sum, minimum, maximum, and, or, xor
unsigned emu_vote(int line, int how, unsigned mask, uint64_t value);
unsigned emu_activemask(int line);
void emu_warp_sync(int line, unsigned mask);
// Fragments as registers of 32 bits (see tensor.cc); types: see emu_type.
void emu_mma(int line, int m, int n, int k, int a_type, int b_type, int c_type, int saturate, uint32_t* d,
             const uint32_t* a, const uint32_t* b, const uint32_t* c);
void emu_ldmatrix(int line, int count, int transpose, uint64_t address, uint32_t* d);
void emu_wmma(int line, int m, int n, int k, int a_type, int b_type, int c_type, int d_type, void* d, const void* a,
              const void* b, const void* c);
}

enum emu_type { EMU_F16, EMU_BF16, EMU_TF32, EMU_F32, EMU_S8, EMU_U8, EMU_S32, EMU_F64 };
