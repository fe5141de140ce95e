// A card without a card: CUDA's driver and runtime as far as TVM and the exploration call them. Memory is the
// host's, a launch runs to its end on the emulator (roller_check), and an image is the path of the emulator's library.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <string>
#define API extern "C" int

static double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}
struct Function {
  void* entry;
  bool hold;
};
struct Limits {
  double seconds;
  unsigned shared_bytes;
  int allow_uninitialised, allow_races, unchecked;
};
struct Config {
  unsigned grid[3], block[3], shared;
  void *stream, *attributes;
  unsigned count;
};
static int run(void* entry, const unsigned* grid, const unsigned* block, unsigned shared, void** arguments) {
  static void* emulator = dlopen(getenv("FAKE_EMULATOR"), RTLD_NOW | RTLD_GLOBAL);
  typedef int (*Launch)(void*, void**, const unsigned*, const unsigned*, const unsigned*, unsigned, unsigned,
                        const Limits*, void*);
  static Launch launch = (Launch)dlsym(emulator, "emu_launch");
  Limits limits{60.0, 232448, 1, 1, 1};
  static char error[65536];
  if (!launch(entry, arguments, grid, block, nullptr, 0, shared, &limits, error)) return 0;
  fprintf(stderr, "fake_cuda: kind %d, line %d, %s\n", *(int*)error, ((int*)error)[2], error + 256);
  return 719;
}

API cuInit(unsigned) { return 0; }
API cuDeviceGet(int* device, int) { return *device = 0; }
API cuDevicePrimaryCtxRetain(void** context, int) { return *context = (void*)1, 0; }
API cuCtxSetCurrent(void*) { return 0; }
API cuDeviceGetName(char* name, int size, int) { return snprintf(name, size, "fake"), 0; }
API cuFuncSetAttribute(void*, int, int) { return 0; }
API cuGetErrorName(int, const char** text) { return *text = "error", 0; }
API cuGetErrorString(int, const char** text) { return *text = "error", 0; }
API cuTensorMapEncodeTiled() { return 801; }
API cuModuleUnload(void*) { return 0; }
API cuModuleLoadData(void** module, const char* image) {
  if (strstr(image, ".entry hold")) return *module = (void*)1, 0;
  *module = dlopen(image, RTLD_NOW);
  if (!*module) fprintf(stderr, "fake_cuda: %s\n", dlerror());
  return *module ? 0 : 200;
}
API cuModuleGetFunction(void** function, void* module, const char* name) {
  auto made = new Function{nullptr, module == (void*)1};
  if (!made->hold) made->entry = dlsym(module, (std::string("emu_call_") + name).c_str());
  *function = made;
  return made->hold || made->entry ? 0 : 500;
}
API cuLaunchKernelEx(const Config* config, Function* function, void** arguments, void**) {
  return run(function->entry, config->grid, config->block, config->shared, arguments);
}
API cuLaunchKernel(Function* function, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz,
                   unsigned shared, void*, void** arguments, void**) {
  unsigned grid[3] = {x, y, z}, block[3] = {tx, ty, tz};
  if (!function->hold) return run(function->entry, grid, block, shared, arguments);
  double end = now() + *(uint64_t*)arguments[0] * 1e-9;
  while (now() < end) {
  }
  return 0;
}
API cuMemsetD32_v2(void*, unsigned, size_t) { return 801; }
API cuModuleGetGlobal_v2(void**, size_t*, void*, const char*) { return 500; }
API cuEventCreate(double** event, unsigned) { return *event = new double(0), 0; }
API cuEventRecord(double* event, void*) { return *event = now(), 0; }
API cuEventElapsedTime(float* ms, const double* first, const double* last) { return *ms = (*last - *first) * 1e3, 0; }

API cudaDeviceGetAttribute(int* value, int which, int) {
  *value = which == 75 ? 9 : which == 76 ? 0 : which == 10 ? 32 : 1024;
  return 0;
}
API cudaGetDevice(int* device) { return *device = 0; }
API cudaGetDeviceCount(int* count) { return *count = 1, 0; }
API cudaGetDeviceProperties(void*, int) { return 0; }
API cudaGetDeviceProperties_v2(void*, int) { return 0; }
API cudaMemsetAsync(void* memory, int value, size_t bytes, void*) { return memset(memory, value, bytes), 0; }
API cudaSetDevice(int) { return 0; }
API cudaGetLastError() { return 0; }
API cudaPeekAtLastError() { return 0; }
extern "C" const char* cudaGetErrorName(int) { return "error"; }
extern "C" const char* cudaGetErrorString(int) { return "error"; }
API cudaMalloc(void** memory, size_t bytes) { return (*memory = aligned_alloc(256, (bytes + 511) / 256 * 256)) ? 0 : 2; }
API cudaMallocHost(void** memory, size_t bytes) { return cudaMalloc(memory, bytes); }
API cudaFree(void* memory) { return free(memory), 0; }
API cudaFreeHost(void* memory) { return free(memory), 0; }
API cudaMemGetInfo(size_t* left, size_t* all) { return *left = *all = (size_t)1 << 33, 0; }
API cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void*) { return memmove(to, from, bytes), 0; }
API cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, void*) { return memmove(to, from, bytes), 0; }
API cudaEventCreate(double** event) { return cuEventCreate(event, 0); }
API cudaEventDestroy(double* event) { return delete event, 0; }
API cudaEventElapsedTime(float* ms, const double* a, const double* b) { return cuEventElapsedTime(ms, a, b); }
API cudaEventRecord(double* event, void* stream) { return cuEventRecord(event, stream); }
API cudaEventSynchronize(void*) { return 0; }
API cudaStreamCreate(void** stream) { return *stream = (void*)2, 0; }
API cudaStreamCreateWithFlags(void** stream, unsigned) { return *stream = (void*)2, 0; }
API cudaStreamDestroy(void*) { return 0; }
API cudaStreamSynchronize(void*) { return 0; }
API cudaStreamWaitEvent(void*, void*, unsigned) { return 0; }
// What is captured runs as it is captured, and not again: results stay where they are.
API cudaStreamBeginCapture(void*, int) { return 0; }
API cudaStreamEndCapture(void*, void** graph) { return *graph = (void*)3, 0; }
API cudaGraphInstantiate(void** made, void*, unsigned long long) { return *made = (void*)4, 0; }
API cudaGraphLaunch(void*, void*) { return 0; }
API cudaGraphDestroy(void*) { return 0; }
API cudaGraphExecDestroy(void*) { return 0; }
