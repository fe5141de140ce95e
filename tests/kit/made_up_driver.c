/* A CUDA driver whose card is this process: the kit's fill, relu and compare really run, in plain C. A plan's kernel
 * does what its image says in words: "right", "wrong", "near" (a few roundings off), "once" (wrong when launched again), "short" (leaves an element out), "over" (writes behind the end),
 * "hang", "die", "fault" (breaks the context), "refused", "no image"; and "count=8 us=12.5".
 * Its time is a queue's: a kernel begins when the one before is done and it has been launched, whichever is later.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
typedef uint64_t ptr;
typedef struct { char text[256]; } module;
typedef struct { module *of; char name[64]; unsigned shared; } function;
static int broken;
static double done, waited; /* when the card is done, and what was waited for it in no time; microseconds */
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec / 1e3 + waited;
}
static double ready(void) { double t = now(); return done > t ? done : t; }
static void take(double us) { done = ready() + us; }
static void wait_for(double until) { double left = until - now(); if (left > 0) waited += left; }
#define CALL(...) { if (broken) return broken; __VA_ARGS__; return 0; }

int cuInit(unsigned f) { if (getenv("MADE_UP_HANGS")) for (;;) pause(); return getenv("MADE_UP_NO_DEVICE") ? 100 : 0; }
int cuGetErrorName(int c, const char **s) {
  *s = c == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : c == 100 ? "CUDA_ERROR_NO_DEVICE" : c == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : c == 701 ? "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
     : c == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : "CUDA_ERROR_UNKNOWN";
  return 0;
}
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *d, int n) { *d = n; return 0; }
int cuDeviceGetName(char *s, int n, int d) { strcpy(s, "NVIDIA Made Up"); return 0; }
int cuDeviceTotalMem_v2(size_t *n, int d) { *n = (size_t)1 << 30; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) {
  const char *minor = getenv("MADE_UP_ARCH");
  int arch = minor ? atoi(minor) : 90;
  switch (a) {
    case 75: *v = arch / 10; break; case 76: *v = arch % 10; break; case 16: *v = getenv("MADE_UP_UNITS") ? atoi(getenv("MADE_UP_UNITS")) : 132; break; case 10: *v = 32; break;
    case 1: *v = 1024; break; case 39: *v = 2048; break; case 106: *v = 32; break; case 82: case 12: *v = 65536; break;
    case 8: *v = 49152; break; case 97: *v = 232448; break; case 81: *v = 233472; break; case 111: *v = 1024; break;
    case 38: *v = 1 << 20; break; case 13: *v = 1500000; break; default: *v = 1000;
  }
  return 0;
}
int cuDevicePrimaryCtxRetain(void **c, int d) CALL(*c = (void *)1)
int cuDevicePrimaryCtxRelease_v2(int d) CALL()
int cuCtxSetCurrent(void *c) CALL()
int cuCtxSynchronize(void) CALL(wait_for(done))
int cuMemGetInfo_v2(size_t *f, size_t *t) CALL(*f = *t = (size_t)1 << 28)
int cuModuleLoadData(void **m, const void *image) {
  if (getenv("MADE_UP_OLD") || strstr((const char *)image, "no image")) return 209;
  module *made = calloc(1, sizeof *made);
  strncpy(made->text, image, sizeof made->text - 1);
  CALL(*m = made)
}
int cuModuleUnload(void *m) CALL(free(m))
int cuModuleGetFunction(void **f, void *m, const char *name) {
  function *made = calloc(1, sizeof *made);
  made->of = m;
  strncpy(made->name, name, sizeof made->name - 1);
  CALL(*f = made)
}
int cuFuncSetAttribute(void *f, int a, int v) {
  if (a != 8 || v > 232448) return 1;
  CALL(((function *)f)->shared = v)
}
int cuEventCreate(void **e, unsigned f) CALL(*e = malloc(sizeof(double)))
int cuEventRecord(void *e, void *s) CALL(*(double *)e = ready())
int cuEventSynchronize(void *e) CALL(wait_for(*(double *)e))
int cuEventElapsedTime(float *t, void *a, void *b) CALL(*t = (*(double *)b - *(double *)a) / 1e3)
int cuMemAlloc_v2(ptr *p, size_t n) { if (getenv("MADE_UP_FULL")) return 2; CALL(*p = (ptr)(uintptr_t)malloc(n)) }
int cuMemFree_v2(ptr p) CALL(free((void *)p))
int cuMemsetD8_v2(ptr p, unsigned char c, size_t n) CALL(memset((void *)p, c, n))
int cuMemcpyHtoD_v2(ptr p, const void *s, size_t n) CALL(memcpy((void *)p, s, n))
int cuMemcpyDtoH_v2(void *t, ptr p, size_t n) CALL(memcpy(t, (void *)p, n))

static float made(uint32_t i, uint32_t seed) {
  uint32_t h = (i ^ seed) * 2654435769u;
  h = (h ^ h >> 15) * 2246822519u;
  h = (h ^ h >> 13) * 3266489917u;
  h ^= h >> 16;
  return ((int)(h % 257u) - 128) / 128.0f;
}
#define ARG(n, type) (*(type *)args[n])
#define FLOATS(n) ((float *)ARG(n, ptr))
int cuLaunchKernel(void *g, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **args, void **extra) {
  function *f = g;
  const char *text = f->of->text, *name = f->name;
  if (broken) return broken;
  if (shared > f->shared) return 701;
  if (!strcmp(name, "fill")) {
    for (uint64_t i = 0; i < ARG(1, uint64_t); i++) FLOATS(0)[i] = made(i, ARG(2, uint32_t));
  } else if (!strcmp(name, "relu")) {
    for (uint64_t i = 0; i < ARG(2, uint64_t); i++) FLOATS(1)[i] = getenv("MADE_UP_REFERENCE") ? 7 : FLOATS(0)[i] > 0 ? FLOATS(0)[i] : 0;
  } else if (!strcmp(name, "compare")) {
    uint64_t worst = 0;
    uint32_t *told = (uint32_t *)ARG(4, ptr);
    union { uint64_t bits; float f[2]; } limits = {ARG(5, uint64_t)};
    for (uint64_t i = 0; i < ARG(2, uint64_t); i++) {
      float a = FLOATS(0)[i], b = FLOATS(1)[i], gap = a > b ? a - b : b - a;
      union { float f; uint32_t u; } bits = {gap}, size = {b < 0 ? -b : b};
      if (size.u > told[0]) told[0] = size.u;
      if (a == b) continue;
      told[1]++;
      if (!(gap <= 3e38f)) told[2]++, bits.u = 0x7f800000u;
      if (gap <= limits.f[1] * size.f + limits.f[0]) continue;
      told[3]++;
      if (((uint64_t)bits.u << 32 | i) > worst) worst = (uint64_t)bits.u << 32 | i;
    }
    *(uint64_t *)ARG(3, ptr) = worst;
  } else if (!strcmp(name, "main_kernel")) {
    unsigned count = atoi(strstr(text, "count=") + 6);
    const char *time = strstr(text, "us=");
    static int launches;
    const int launched = strstr(text, "once") ? launches++ : 0;
    if (strstr(text, "hang")) for (;;) pause();
    if (strstr(text, "die")) abort();
    if (strstr(text, "fault")) { broken = 700; return 0; }
    if (strstr(text, "refused")) return 701;
    for (unsigned i = 0; i < count; i++) {
      float x = FLOATS(0)[i];
      if (strstr(text, "short") && i == count - 1) continue;
      FLOATS(1)[i] = strstr(text, "wrong") || x > 0 ? x : 0;
      if (strstr(text, "near")) FLOATS(1)[i] *= 1 + 4e-6f;
      if (strstr(text, "once") && launched) FLOATS(1)[i] += 1;
    }
    if (strstr(text, "over")) FLOATS(1)[count] = 1;
    take(time ? atof(time + 3) : 1);
  } else if (!strcmp(name, "empty") || !strcmp(name, "nothing")) {
    take(2.5);
  } else if (!strcmp(name, "hold")) { /* cycles of a clock that is low while the card was idle */
    static int held;
    take(ARG(0, uint64_t) / (held++ < 3 ? 345.0 : 1980.0));
  } else { /* a micro-benchmark: so many rounds */
    take(ARG(0, uint32_t) * 0.01);
  }
  return 0;
}
