// Launches: blocks one after another, threads of a block as fibres that change hands at barriers and warp operations.
// Blocks that poll for each other's writes take turns, each with stacks of its own.
#include <signal.h>
#include <sys/mman.h>
#include <time.h>

#include <cstdio>
#include <iterator>

#define EMU_DEFINE_SWITCH
#include "state.h"

extern "C" {
emu_dim emu_thread_idx, emu_block_idx, emu_block_dim, emu_grid_dim;
}

namespace emu {
namespace {

constexpr size_t STACK = 256 << 10, MOST_THREADS = 1024;
char* stacks;  // of the block that runs

// A block whose threads can only poll.
struct Aside {
  unsigned number;
  std::vector<Thread> threads;
  char* stacks;
  SharedMemory* memory;
};
std::vector<Aside> aside, in_turn;
std::vector<char*> free_stacks;

void enter() {
  launch.kernel(launch.arguments);
  memory_settle();
  launch.now->state = DONE;
  for (;;) yield();
}

void run(unsigned number) {
  auto& t = launch.threads[number];
  launch.now = &t;
  launch.me = number;
  emu_thread_idx = t.index;
  fibre_switch(launch.scheduler, t.fibre);
  memory_settle();
  launch.steps += t.state != AT_POLL;
}

// Lanes of a warp that wait for one another go on, if all that are called for have come.
bool meet(unsigned first, unsigned last) {
  unsigned present = 0;
  for (unsigned i = first; i < last; i++)
    if (launch.threads[i].state != DONE) present |= 1u << (i - first);
  bool any = false;
  for (int soft = 0; soft < 2; soft++) {
    for (unsigned i = first; i < last; i++) {
      auto& t = launch.threads[i];
      if (t.state != AT_WARP || t.call->soft != (bool)soft) continue;
      WarpCall* lanes[32] = {};
      unsigned came = 0;
      for (unsigned j = i; j < last; j++) {
        auto& other = launch.threads[j];
        if (other.state == AT_WARP && other.call->action == t.call->action && other.call->line == t.call->line &&
            other.call->how == t.call->how && other.call->mask == t.call->mask) {
          lanes[j - first] = other.call;
          came |= 1u << (j - first);
        }
      }
      const unsigned needed = t.call->mask & present;
      if (!soft && (came & needed) != needed) continue;
      t.call->action(lanes, came);
      for (unsigned j = first; j < last; j++)
        if (came >> (j - first) & 1) {
          launch.threads[j].state = READY;
          if (!soft) launch.threads[j].warp_epoch++;
        }
      any = true;
      if (soft) return true;  // others may join the next one
    }
    if (any) return true;
  }
  return false;
}

void run_warp(unsigned first, unsigned last) {
  do {
    for (unsigned i = first; i < last; i++)
      if (launch.threads[i].state == READY) run(i);
  } while (meet(first, last));
}

// All threads have come to a stand: a barrier that all have reached, the end, or a kernel that would hang.
bool release_barrier() {
  bool polls = false;
  for (unsigned i = 0; i < launch.count; i++) {
    auto& t = launch.threads[i];
    polls |= t.state == AT_POLL;
    if (t.state != AT_BARRIER || !t.expected) continue;
    unsigned came = 0;
    for (auto& other : launch.threads) came += other.state == AT_BARRIER && other.expected && other.barrier == t.barrier;
    if (came < t.expected) continue;
    const unsigned number = t.barrier;
    memory_barrier();
    for (auto& other : launch.threads)
      if (other.state == AT_BARRIER && other.expected && other.barrier == number) other.state = READY, other.warp_epoch = 0;
    return true;
  }
  if (polls) return false;
  unsigned waiting = 0, gone = 0, elsewhere = 0;
  int line = 0;
  const Thread *first = nullptr, *stray = nullptr;
  for (unsigned i = 0; i < launch.count; i++) {
    auto& t = launch.threads[i];
    if (t.state == DONE) {
      gone++;
      if (!stray) stray = &t;
    } else if (t.state == AT_BARRIER && !t.expected && (!first || t.line == line)) {
      if (!first) first = &t, line = t.line;
      waiting++;
    } else {
      elsewhere++;
      stray = &t;
    }
  }
  if (gone == launch.count) return false;
  if (waiting == launch.count) {
    unsigned count = 0;
    for (auto& t : launch.threads) count += t.value != 0;
    launch.barrier_result = count;
    memory_barrier();
    for (auto& t : launch.threads) t.state = READY, t.warp_epoch = 0;
    return true;
  }
  const Thread* stuck = nullptr;
  for (unsigned i = 0; i < launch.count && !stuck; i++)
    if (launch.threads[i].state == AT_WARP) stuck = &launch.threads[i];
  auto& e = report(stuck ? EMU_WARP_DIVERGENT : EMU_DIVERGENT);
  if (stuck) {
    e.thread = stuck->index;
    e.line = stuck->call->line;
    snprintf(e.text, sizeof e.text, "%s", stuck->call->what);
    // The lane it waits for.
    const unsigned number = (unsigned)(stuck - launch.threads.data()), base = number / 32 * 32;
    for (unsigned i = base; i < launch.count && i < base + 32; i++) {
      auto& t = launch.threads[i];
      if (!(stuck->call->mask >> (i - base) & 1) || t.state == DONE) continue;
      if (t.state == AT_WARP && t.call->line == stuck->call->line && t.call->mask == stuck->call->mask) continue;
      e.other_thread = t.index;
      e.other_line = t.state == AT_WARP ? t.call->line : t.line;
      break;
    }
  } else {
    if (!first) first = stray, line = stray->line;  // all at barriers for more threads than there are
    e.thread = first->index;
    e.line = line;
    e.other_thread = stray->index;
    e.other_line = stray->state == AT_BARRIER ? stray->line : 0;
  }
  e.waiting = waiting;
  e.arrived = elsewhere;
  e.gone = gone;
  launch.failed = true;
  return false;
}

void start_block() {
  for (unsigned i = 0; i < launch.count; i++) {
    auto& t = launch.threads[i];
    t.state = READY;
    t.line = 0;
    t.call = nullptr;
    t.warp_epoch = 0;
    t.copies.clear();
    t.groups.clear();
    t.open = 0;
    t.index = {i % emu_block_dim.x, i / emu_block_dim.x % emu_block_dim.y, i / emu_block_dim.x / emu_block_dim.y};
    fibre_start(t.fibre, stacks + i * STACK, STACK, enter);
  }
}

// Until all threads are gone, or none can do more than poll.
void run_block() {
  do {
    for (unsigned first = 0; first < launch.count && !launch.failed; first += 32)
      run_warp(first, first + 32 < launch.count ? first + 32 : launch.count);
    if (launch.failed) return;
    check_time();
  } while (release_barrier());
}

bool block_polls() {
  for (auto& t : launch.threads)
    if (t.state == AT_POLL) return true;
  return false;
}

void select_block(unsigned number) {
  emu_block_idx = {number % emu_grid_dim.x, number / emu_grid_dim.x % emu_grid_dim.y,
                   number / emu_grid_dim.x / emu_grid_dim.y};
}

bool new_stacks() {
  if (!free_stacks.empty()) {
    stacks = free_stacks.back();
    free_stacks.pop_back();
    return true;
  }
  void* p = mmap(nullptr, MOST_THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return false;
  stacks = (char*)p;
  // The lowest page of each is a wall, so that a thread that needs more does not write into its neighbour. Each wall
  // is a mapping of its own, of which a process has some ten thousands: blocks beyond the first few go without.
  static unsigned walled = 0;
  for (size_t i = 0; i < MOST_THREADS && walled < 8; i++) mprotect(stacks + i * STACK, 4096, PROT_NONE);
  walled++;
  return true;
}

void put_aside(unsigned number) {
  aside.push_back({number, {}, stacks, memory_put_aside()});
  aside.back().threads.swap(launch.threads);
  launch.threads.resize(launch.count);
  stacks = nullptr;
}

void take_up(Aside& block) {
  launch.threads.swap(block.threads);
  if (stacks) free_stacks.push_back(stacks);
  stacks = block.stacks;
  select_block(block.number);
  memory_take_up(block.memory, block.number);
  block.memory = nullptr;
  for (auto& t : launch.threads)
    if (t.state == AT_POLL) t.state = READY;
}

void forget_aside() {
  in_turn.insert(in_turn.end(), std::make_move_iterator(aside.begin()), std::make_move_iterator(aside.end()));
  for (auto& block : in_turn)
    if (block.memory) {
      free_stacks.push_back(block.stacks);
      memory_forget(block.memory);
    }
  in_turn.clear();
  aside.clear();
}

// False: no memory for the threads of a block.
bool run_blocks(const unsigned* chosen, unsigned count, unsigned dynamic_shared) {
  for (unsigned i = 0; i < count && !launch.failed; i++) {
    const unsigned number = chosen ? chosen[i] : i;
    if (!stacks && !new_stacks()) return false;
    select_block(number);
    memory_new_block(number, dynamic_shared);
    start_block();
    run_block();
    if (!launch.failed && block_polls()) put_aside(number);
  }
  while (!aside.empty() && !launch.failed) {
    const auto before = launch.steps;
    in_turn.swap(aside);
    for (auto& block : in_turn) {
      take_up(block);
      run_block();
      if (launch.failed) break;
      if (block_polls()) put_aside(block.number);
    }
    if (!launch.failed) in_turn.clear();
    if (!launch.failed && launch.steps == before) {
      auto& e = report(EMU_TRAP);
      snprintf(e.text, sizeof e.text, "%zu blocks poll for what none of them will write: the kernel would not end",
               aside.size());
      launch.failed = true;
    }
  }
  return true;
}

const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
struct sigaction before[4];

void on_signal(int number, siginfo_t* info, void*) {
  auto& e = report(EMU_CRASH);
  e.signal = number;
  e.offset = (long long)(uintptr_t)info->si_addr;
  launch.failed = true;
  siglongjmp(launch.crash, 1);
}

}  // namespace

emu_error& report(int kind) {
  auto& e = *launch.error;
  memset(&e, 0, sizeof e);
  e.kind = kind;
  e.buffer = -1;
  e.block = emu_block_idx;
  if (launch.now) e.thread = launch.now->index;
  return e;
}

void yield() { fibre_switch(launch.now->fibre, launch.scheduler); }

void fail() {
  launch.failed = true;
  siglongjmp(launch.crash, 1);  // fibres are left as they are: they own nothing
}

void arrive(WarpCall& call) {
  auto& t = *launch.now;
  t.call = &call;
  t.state = AT_WARP;
  yield();
}

}  // namespace emu

using namespace emu;

extern "C" {

unsigned emu_barrier(int line, int how, unsigned value) {
  auto& t = *launch.now;
  memory_settle();
  t.state = AT_BARRIER;
  t.line = line;
  t.value = value;
  t.expected = 0;
  yield();
  const unsigned count = launch.barrier_result;
  return how == 1 ? count : how == 2 ? count == launch.count : how == 3 ? count != 0 : 0;
}

void emu_barrier_of(int line, unsigned number, unsigned threads) {
  auto& t = *launch.now;
  memory_settle();
  t.state = AT_BARRIER;
  t.line = line;
  t.barrier = number;
  t.expected = threads;
  yield();
}

void emu_poll() {
  memory_settle();
  launch.now->state = AT_POLL;
  yield();
}

void emu_trap(int line, const char* text) {
  auto& e = report(EMU_TRAP);
  e.line = line;
  snprintf(e.text, sizeof e.text, "%s", text);
  fail();
}

int emu_launch(void (*kernel)(void**), void** arguments, const unsigned* grid, const unsigned* block,
               const unsigned* chosen, unsigned chosen_count, unsigned dynamic_shared, const emu_limits* limits,
               emu_error* error) {
  if (!memory_prepare()) return -1;
  forget_aside();
  if (!stacks && !new_stacks()) return -1;
  auto& l = launch;
  l.kernel = kernel;
  l.arguments = arguments;
  l.limits = *limits;
  l.error = error;
  l.failed = false;
  l.now = nullptr;
  l.count = block[0] * block[1] * block[2];
  if (l.threads.size() < l.count) l.threads.reserve(MOST_THREADS);
  l.threads.resize(l.count);
  memset(error, 0, sizeof *error);
  emu_block_dim = {block[0], block[1], block[2]};
  emu_grid_dim = {grid[0], grid[1], grid[2]};
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  l.deadline = t.tv_sec + t.tv_nsec * 1e-9 + limits->seconds;
  memory_new_launch(grid[0] * grid[1] * grid[2]);

  static char signal_stack[64 << 10];
  stack_t alternate{}, previous{};
  alternate.ss_sp = signal_stack;
  alternate.ss_size = sizeof signal_stack;
  sigaltstack(&alternate, &previous);
  struct sigaction action{};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int i = 0; i < 4; i++) sigaction(SIGNALS[i], &action, &before[i]);
  l.running = true;
  bool memory = true;
  if (!sigsetjmp(l.crash, 1))
    memory = run_blocks(chosen, chosen ? chosen_count : grid[0] * grid[1] * grid[2], dynamic_shared);
  l.running = false;
  for (int i = 0; i < 4; i++) sigaction(SIGNALS[i], &before[i], nullptr);
  sigaltstack(&previous, nullptr);
  return !memory ? -1 : l.failed ? 1 : 0;
}
}
