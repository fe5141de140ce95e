/* A library with the CUDA driver's names: it checks what it is given, and a launch of "add" stores a sum. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
typedef uint64_t ptr;
static char memory[4096]; static int contexts, modules; static unsigned last[7]; static float ms;
int cuInit(unsigned f) { return f; }
int cuGetErrorName(int c, const char **s) { *s = c == 1 ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR_UNKNOWN"; return 0; }
int cuDriverGetVersion(int *v) { *v = 12090; return 0; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *d, int n) { *d = n + 7; return n > 1; }
int cuDeviceGetName(char *s, int n, int d) {
  if (n < 9) return 1;
  strcpy(s, d == 8 ? "NVIDIA B" : "NVIDIA A");
  return 0;
}
int cuDeviceTotalMem_v2(size_t *n, int d) { *n = (size_t)d << 33; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) {
  if (a == 111) return 1; /* an older driver */
  *v = a == 75 ? 9 : a == 76 ? 0 : 1000 + a; return d < 7; }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)(intptr_t)d; contexts++; return 0; }
int cuDevicePrimaryCtxRelease_v2(int d) { contexts--; return d < 7; }
int cuCtxSetCurrent(void *c) { return (intptr_t)c != 8; }
int cuModuleLoadData(void **m, const void *image) {
  modules++;
  *m = (void *)0x1234567890;
  return memcmp(image, "\x7f" "ELF", 4) != 0;
}
int cuModuleUnload(void *m) { modules--; return m != (void *)0x1234567890; }
int cuModuleGetFunction(void **f, void *m, const char *name) {
  *f = (void *)0x98765432100; return m != (void *)0x1234567890 || strcmp(name, "add") ? 500 : 0; }
int cuEventCreate(void **e, unsigned f) { static int n; *e = (void *)(intptr_t)(0x5000000000 + n++); return f; }
int cuEventRecord(void *e, void *s) { if (!s && e == (void *)0x5000000000) ms = 0; return s != 0; }
int cuEventSynchronize(void *e) { return e != (void *)0x5000000001; }
int cuEventElapsedTime(float *t, void *a, void *b) { *t = ms; return !(a < b); }
int cuMemAlloc_v2(ptr *p, size_t n) { *p = (ptr)(uintptr_t)memory; return n > sizeof memory ? 2 : 0; }
int cuMemFree_v2(ptr p) { return p != (ptr)(uintptr_t)memory; }
int cuMemsetD8_v2(ptr p, unsigned char c, size_t n) { memset((void *)p, c, n); return 0; }
int cuMemcpyHtoD_v2(ptr p, const void *s, size_t n) { memcpy((void *)p, s, n); return 0; }
int cuMemcpyDtoH_v2(void *t, ptr p, size_t n) { memcpy(t, (void *)p, n); return 0; }
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **args, void **extra) {
  if (f != (void *)0x98765432100 || stream || extra || shared || gy * gz * by * bz != 1) return 1;
  ptr out = *(ptr *)args[1];
  uint64_t value = *(unsigned *)args[0] + gx * 1000 + bx; memcpy((void *)out, &value, 8);
  ms += 0.25f; return 0; }
