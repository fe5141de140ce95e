// What the parts of the emulator share. One block runs at a time, on one thread of the machine: results repeat.
// A block whose threads poll for what another writes is put aside, and others have their turn.
#pragma once
#include <csetjmp>
#include <vector>

#include "emulator.h"
#include "switch.h"

namespace emu {

enum State : uint8_t { READY, AT_BARRIER, AT_WARP, AT_POLL, DONE };

struct WarpCall;
using WarpAction = void (*)(WarpCall** lanes, unsigned active);  // lanes[i] of those in `active`

// One lane's arrival at an operation of the warp.
struct WarpCall {
  WarpAction action;
  int line, how;
  unsigned mask;
  bool soft;  // goes ahead with whichever lanes came (__activemask)
  const char* what;
  void* data;
};

struct Copy {
  unsigned to, bytes, valid;
  const char* from;
};

struct Thread {
  Fibre fibre;
  State state;
  int line;         // of the barrier it waits at
  unsigned barrier, expected;  // its number, and how many threads it waits for (0: all of the block)
  unsigned value;   // what it brought there
  WarpCall* call;
  emu_dim index;
  unsigned warp_epoch;  // how often its warp has synchronised since the last barrier
  std::vector<Copy> copies;          // by cp.async, in order
  std::vector<unsigned> groups;      // how many copies each committed, unwaited group has
  unsigned open;                     // copies not committed yet
};

struct Launch {
  bool running = false;
  std::vector<Thread> threads;  // of the block that runs
  unsigned count = 0;           // threads of a block
  Thread* now = nullptr;
  unsigned me = 0;              // its number
  Fibre scheduler;
  emu_limits limits{};
  emu_error* error = nullptr;
  bool failed = false;
  sigjmp_buf crash;
  unsigned barrier_result = 0;
  unsigned long long steps = 0;  // threads that came to anything but another poll
  double deadline = 0;
  int hint = 0;  // line of the source that an emulated instruction stands at
  void (*kernel)(void**) = nullptr;
  void** arguments = nullptr;
};
extern Launch launch;

// Ends the launch with what `error` says; does not return to the thread that called.
[[noreturn]] void fail();
emu_error& report(int kind);  // filled with where we are
void yield();                 // to the scheduler
void arrive(WarpCall& call);  // waits for the warp

// memory.cc
bool memory_prepare();
void memory_new_launch(unsigned blocks);
void memory_new_block(unsigned number, unsigned dynamic_shared);
void memory_barrier();        // all threads of the block have met
void memory_settle();         // a write that looked like a race is compared with what it replaced
bool memory_contains(const void* p);
struct SharedMemory;          // of a block that was put aside
SharedMemory* memory_put_aside();
void memory_take_up(SharedMemory* memory, unsigned number);
void memory_forget(SharedMemory* memory);
extern unsigned long long accesses;
void check_time();

}  // namespace emu
