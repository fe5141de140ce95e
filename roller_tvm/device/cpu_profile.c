/* Micro-benchmarks of a CPU: rates are reported repeat by repeat, and judged by cpu_profile.py.
 *
 * Compiled with -DVECTOR_BYTES=16|32|64 for the widest SIMD of the machine.  Arguments are the CPUs to use, those of
 * different cores first.  Reads one request a line from stdin:
 *     <kind> <threads> <bytes a thread> <budget in ms> <most repeats>
 * and answers with lines
 *     <request number> <work> <nanoseconds> <1 if the repeat was disturbed, else 0>
 * where work is FLOP (fma*, matrix), instructions (begin), bytes (read), dependent steps (clock, latency*, chase),
 * parallel regions (launch).  Repeats are short, so that on a machine that others use too some of them run undisturbed:
 * a repeat is disturbed if one of its threads had the CPU for less than all of the time, or began much later than
 * another.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef VECTOR_BYTES
#define VECTOR_BYTES 16
#endif
#define MAX_THREADS 1024
#define REPEAT_NS 0.5e6 /* short beside a time slice of the scheduler, long beside reading a clock */
#define DISTURBED 0.05  /* share of a repeat */

typedef float v32 __attribute__((vector_size(VECTOR_BYTES)));
typedef double v64 __attribute__((vector_size(VECTOR_BYTES)));
typedef long long vint __attribute__((vector_size(VECTOR_BYTES)));
#if defined(__AVX512FP16__) || defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#define HAS_FP16 1
typedef _Float16 v16 __attribute__((vector_size(VECTOR_BYTES)));
#endif

/* Enough chains to cover latency times issue width, few enough to stay in registers.  Named variables, as compilers
 * keep an array of accumulators in memory. */
#define EACH12(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11)
#if VECTOR_BYTES == 64 || defined(__aarch64__)
#define CHAINS 24
#define EACH(M) EACH12(M) M(12) M(13) M(14) M(15) M(16) M(17) M(18) M(19) M(20) M(21) M(22) M(23)
#else
#define CHAINS 12
#define EACH(M) EACH12(M)
#endif
#define EACH1(M) M(0)
#define EACH8(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7)
#define STREAMS 8

static volatile double sink;

static int64_t read_clock(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t now_ns(void) { return read_clock(CLOCK_MONOTONIC); }
static int64_t cpu_ns(void) { return read_clock(CLOCK_THREAD_CPUTIME_ID); }

#define CHAIN_START(i) c##i = a * (i + 1);
#define CHAIN_STEP(i) c##i = c##i * a + b;
#define CHAIN_SUM(i) total += c##i;
#define CHAIN_NAME(i) , c##i

#define FMA_KERNEL(NAME, VEC, SCALAR, LOOP, THEN)                                     \
  static double NAME(int64_t rounds, const SCALAR *in) {                              \
    VEC a = in[0] + (VEC){0}, b = in[1] + (VEC){0}, total LOOP(CHAIN_NAME);           \
    LOOP(CHAIN_START)                                                                 \
    for (int64_t r = 0; r < rounds; r++) {                                            \
      LOOP(CHAIN_STEP)                                                                \
      THEN                                                                            \
    }                                                                                 \
    total = a;                                                                        \
    LOOP(CHAIN_SUM)                                                                   \
    double sum = 0;                                                                   \
    for (unsigned i = 0; i < sizeof(VEC) / sizeof(SCALAR); i++) sum += (double)total[i]; \
    return sum;                                                                       \
  }

FMA_KERNEL(fma32, v32, float, EACH, )
FMA_KERNEL(fma64, v64, double, EACH, )
FMA_KERNEL(latency32, v32, float, EACH1, )
/* Two instructions that do nothing for each multiply-add, about as many as a product's tile has of others. */
#define NOPS __asm__ volatile(".rept %c0\n nop\n .endr" : : "i"(2 * CHAINS));
#if defined(__FMA__) || defined(__aarch64__)
#define BEGUN_STEP 3
#else
#define BEGUN_STEP 4 /* a product and a sum */
#endif
#define BEGUN_LOOP 2
FMA_KERNEL(begin, v32, float, EACH, NOPS)

#ifdef HAS_FP16
FMA_KERNEL(fma16, v16, _Float16, EACH, )
#endif

/* Products of tiles into four accumulators, as many as hide their latency beside four tiles of operands. */
#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#define HAS_MATRIX
#define ASK_FOR_TILES 0x1023 /* arch_prctl(ARCH_REQ_XCOMP_PERM) */
#define TILE_DATA 18
#define TILE_PRODUCTS 8
#define TILE_FLOP (2.0 * 16 * 16 * 32)
static int tiles_granted;

static double tile_products(int64_t rounds) {
  /* Not a local one: compilers do not see that all of it is read. */
  static const struct { uint8_t palette, row, rest[14]; uint16_t bytes[16]; uint8_t rows[16]; } shape = {
    .palette = 1, .bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
  _tile_loadconfig(&shape);
  _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
  _tile_zero(4); _tile_zero(5); _tile_zero(6); _tile_zero(7);
  for (int64_t r = 0; r < rounds; r++) {
#define TILE_STEP _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7);
    TILE_STEP TILE_STEP
  }
  _tile_release();
  return 0;
}
#endif

/* One add waits for the one before: a step is a clock. */
static double clock_chain(int64_t rounds) {
  uint64_t x = 1, y = 3;
  for (int64_t r = 0; r < rounds; r++) {
#define STEP x += y; __asm__ volatile("" : "+r"(x), "+r"(y));
#define STEP8 STEP STEP STEP STEP STEP STEP STEP STEP
    STEP8 STEP8 STEP8 STEP8
  }
  return (double)x;
}
#define CLOCK_STEPS 32

#define READ_STEP(i) s##i ^= p[i];
#define READ_NAME(i) , s##i = zero
#define READ_SUM(i) zero ^= s##i;

/* A round reads a buffer whole, or the next part of one that a repeat would be too long for. */
#define PART ((size_t)4 << 20)
static size_t part_of(size_t bytes) { return bytes < PART ? bytes : PART; }
static _Thread_local size_t next_part;

static double read_buffer(int64_t rounds, const char *buffer, size_t bytes) {
  vint zero = {0};
  vint first = zero EACH8(READ_NAME);
  for (int64_t r = 0; r < rounds; r++) {
    if (next_part + part_of(bytes) > bytes) next_part = 0;
    const vint *p = (const vint *)(buffer + next_part), *end = p + part_of(bytes) / sizeof(vint) / STREAMS * STREAMS;
    next_part += part_of(bytes);
    for (; p < end; p += STREAMS) {
      EACH8(READ_STEP)
    }
    __asm__ volatile("" ::: "memory");
  }
  zero = first;
  EACH8(READ_SUM)
  return (double)zero[0];
}

/* Goes on where it stopped: a repeat that began anew would find its lines in a nearer cache. */
static void **chase_at;

static double chase(int64_t steps) {
  void **p = chase_at;
  for (int64_t i = 0; i < steps; i += 8) {
    p = *p; p = *p; p = *p; p = *p; p = *p; p = *p; p = *p; p = *p;
  }
  chase_at = p;
  return (double)(uintptr_t)p;
}

/* Random cycle through the lines of a buffer, so that no prefetcher can follow. */
static void make_cycle(char *buffer, size_t bytes, size_t line) {
  size_t n = bytes / line;
  size_t *order = malloc(n * sizeof *order);
  if (!order) exit(3);
  for (size_t i = 0; i < n; i++) order[i] = i;
  uint64_t seed = 88172645463325252ull;
  for (size_t i = n - 1; i > 0; i--) {
    seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17;
    size_t j = seed % (i + 1), t = order[i];
    order[i] = order[j];
    order[j] = t;
  }
  for (size_t i = 0; i < n; i++)
    *(void **)(buffer + order[i] * line) = buffer + order[(i + 1) % n] * line;
  free(order);
}

/* A parallel region of threads that spin for work, as TVM's pool has them between the operators of a network: for each
 * a queue of its own (task, its two ends and a count, a cache line each), and one count of those that are not done. */
#define LAUNCH_ROUNDS 500
#define POLLS 20000
#define LINE _Alignas(128)
typedef struct { LINE long long task[4]; LINE atomic_llong head; LINE atomic_llong tail; LINE atomic_llong pending; } queue;
static queue queues[MAX_THREADS];
static LINE atomic_llong unfinished;

static void spin_until(atomic_llong *word, int wanted) {
  for (int64_t polls = 0; (atomic_load(word) > 0) != wanted; polls++)
    if (polls > POLLS) sched_yield(); /* more threads than CPUs left to us */
}

static double launches(int64_t rounds, int id, int threads) {
  long long sum = 0;
  for (int64_t r = 0; r < rounds; r++) {
    if (id) {
      queue *own = &queues[id];
      spin_until(&own->pending, 1);
      atomic_fetch_sub(&own->pending, 1);
      if (atomic_load(&own->tail) > atomic_load(&own->head)) sum += own->task[0] + own->task[3];
      atomic_fetch_add(&own->head, 1);
      atomic_fetch_sub(&unfinished, 1);
    } else {
      atomic_store(&unfinished, threads - 1);
      for (int i = 1; i < threads; i++) {
        queue *one = &queues[i];
        sum += atomic_load(&one->head);
        one->task[0] = one->task[3] = r;
        atomic_fetch_add(&one->tail, 1);
        atomic_fetch_add(&one->pending, 1);
      }
      spin_until(&unfinished, 0);
    }
  }
  return (double)sum;
}

struct request { char kind[16]; int threads; size_t bytes; int budget_ms; int repeats; };

static struct request req;
static int number;
static atomic_int arrived, generation;
static atomic_int stop;
static int64_t starts[MAX_THREADS], ends[MAX_THREADS], had_cpu[MAX_THREADS], rounds_of;

static void barrier(int threads) {
  int mine = atomic_load(&generation);
  if (atomic_fetch_add(&arrived, 1) == threads - 1) {
    atomic_store(&arrived, 0);
    atomic_fetch_add(&generation, 1);
  } else {
    for (int spin = 0; atomic_load(&generation) == mine; spin++)
      if (spin > 2000) sched_yield();
  }
}

static int is(const char *kind) { return strcmp(req.kind, kind) == 0; }

static void run_kernel(int64_t rounds, char *buffer, int id) {
  float f[2] = {0.999999f, 0.5f};
  double d[2] = {0.999999, 0.5};
  if (is("fma32")) sink = fma32(rounds, f);
  else if (is("fma64")) sink = fma64(rounds, d);
#ifdef HAS_FP16
  else if (is("fma16")) { _Float16 h[2] = {(_Float16)0.5, (_Float16)0.5}; sink = fma16(rounds, h); }
#endif
#ifdef HAS_MATRIX
  else if (is("matrix")) sink = tile_products(rounds);
#endif
  else if (is("latency32")) sink = latency32(rounds, f);
  else if (is("begin")) sink = begin(rounds, f);
  else if (is("clock")) sink = clock_chain(rounds);
  else if (is("read")) sink = read_buffer(rounds, buffer, req.bytes);
  else if (is("chase")) sink = chase(rounds * 8);
  else if (is("launch")) sink = launches(rounds, id, req.threads);
}

/* Work of one round of one thread; 0 for a kind that this build does not have. */
static double work_of_round(void) {
  if (is("fma32")) return 2.0 * CHAINS * VECTOR_BYTES / 4;
  if (is("fma64")) return 2.0 * CHAINS * VECTOR_BYTES / 8;
#ifdef HAS_FP16
  if (is("fma16")) return 2.0 * CHAINS * VECTOR_BYTES / 2;
#endif
#ifdef HAS_MATRIX
  if (is("matrix")) return tiles_granted ? TILE_PRODUCTS * TILE_FLOP : 0;
#endif
  if (is("latency32")) return 1;
  if (is("begin")) return BEGUN_STEP * CHAINS + BEGUN_LOOP;
  if (is("clock")) return CLOCK_STEPS;
  if (is("read")) return (double)(part_of(req.bytes) / VECTOR_BYTES / STREAMS * STREAMS) * VECTOR_BYTES;
  if (is("chase")) return 8;
  if (is("launch")) return 1.0 / req.threads; /* a region is of all threads */
  return 0;
}

static int cpu_count;
static char **cpu_names;

/* Left alone, threads that meet at a barrier may end up on one CPU and stay there. */
static void pin(int id) {
#ifdef __linux__
  if (cpu_count == 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (req.threads == 1 || req.threads > cpu_count)
    for (int i = 0; i < cpu_count; i++) CPU_SET(atoi(cpu_names[i]), &set);
  else
    CPU_SET(atoi(cpu_names[id]), &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
#else
  (void)id;
#endif
}

static void *worker(void *arg) {
  int id = (int)(intptr_t)arg;
  pin(id);
  next_part = 0;
  char *buffer = NULL;
  if (req.bytes) {
    if (posix_memalign((void **)&buffer, 4096, req.bytes)) exit(3);
    memset(buffer, id + 1, req.bytes); /* first touch by the thread that reads */
    if (is("chase")) {
      make_cycle(buffer, req.bytes, 64);
      chase_at = (void **)buffer;
    }
    run_kernel(1, buffer, id);
  }
  if (id == 0 && is("launch")) {
    rounds_of = LAUNCH_ROUNDS; /* all threads must take part: no trying out alone */
    atomic_store(&stop, 0);
  } else if (id == 0) {
    /* As many rounds as fill a repeat; at least one. */
    int64_t rounds = 1, took = 0;
    for (;;) {
      /* The shortest of three: one that was interrupted would leave hardly a round. */
      took = INT64_MAX;
      for (int i = 0; i < 3 && took > REPEAT_NS / 5; i++) {
        int64_t t = now_ns();
        run_kernel(rounds, buffer, id);
        t = now_ns() - t;
        if (t < took) took = t;
      }
      if (took > REPEAT_NS / 5 || rounds > ((int64_t)1 << 40)) break;
      rounds *= 4;
    }
    rounds = (int64_t)((double)rounds * REPEAT_NS / (double)(took > 0 ? took : 1));
    rounds_of = rounds < 1 ? 1 : rounds;
    atomic_store(&stop, 0);
  }
  int quiet = 0;
  int64_t deadline = now_ns() + (int64_t)req.budget_ms * 1000000;
  for (int r = 0;; r++) {
    barrier(req.threads);
    if (atomic_load(&stop)) break;
    starts[id] = now_ns();
    had_cpu[id] = cpu_ns();
    run_kernel(rounds_of, buffer, id);
    had_cpu[id] = cpu_ns() - had_cpu[id];
    ends[id] = now_ns();
    barrier(req.threads);
    if (id == 0) {
      int64_t first = starts[0], last = ends[0], latest = starts[0];
      for (int i = 1; i < req.threads; i++) {
        if (starts[i] < first) first = starts[i];
        if (starts[i] > latest) latest = starts[i];
        if (ends[i] > last) last = ends[i];
      }
      double all = (double)(last - first), allowed = DISTURBED * all + 1000;
      int disturbed = (double)(latest - first) > allowed;
      for (int i = 0; i < req.threads; i++) disturbed |= (double)(ends[i] - starts[i] - had_cpu[i]) > allowed;
      printf("%d %.17g %.0f %d\n", number, work_of_round() * (double)rounds_of * req.threads, all, disturbed);
      quiet += !disturbed;
      if (quiet >= req.repeats || (now_ns() > deadline && r >= 2)) atomic_store(&stop, 1);
    }
  }
  free(buffer);
  return NULL;
}

int main(int argc, char **argv) {
  cpu_count = argc - 1;
  cpu_names = argv + 1;
#ifdef HAS_MATRIX
  tiles_granted = syscall(SYS_arch_prctl, ASK_FOR_TILES, TILE_DATA) == 0;
#endif
  for (number = 0; scanf("%15s %d %zu %d %d", req.kind, &req.threads, &req.bytes, &req.budget_ms, &req.repeats) == 5;
       number++) {
    if (req.threads < 1 || req.threads > MAX_THREADS) return 2;
    if (work_of_round() == 0) continue;
    pthread_t ids[MAX_THREADS];
    atomic_store(&arrived, 0);
    for (int i = 1; i < req.threads; i++)
      if (pthread_create(&ids[i], NULL, worker, (void *)(intptr_t)i)) return 4;
    worker(0);
    for (int i = 1; i < req.threads; i++) pthread_join(ids[i], NULL);
    fflush(stdout);
  }
  return 0;
}
