// A CUDA driver, compiler and cuBLASLt that do nothing and fail as STUB says, for
// tests of what the command line makes of it. What is made and not given back is
// counted in the file that STUB_LEFT names. rest.h has the functions that are not
// here.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "rest.h"

static int is(const char *what) {
  const char *s = getenv("STUB");
  return s && !strcmp(s, what);
}

static long left;
static int count(long by) {
  left += by;
  const char *path = getenv("STUB_LEFT");
  int f = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666) : -1;
  if (f >= 0) {
    char text[32];
    int n = snprintf(text, sizeof text, "%ld", left);
    if (write(f, text, n) != n) abort();
    close(f);
  }
  return 0;
}
static uintptr_t handle = 64;
static int make(uintptr_t *h) { *h = handle += 64; return count(1); }
static int gone(void) { return count(-1); }

static int lost; // the device, once work on it failed
#define LOST if (lost) return 700

int cuInit(int f) { return is("no device") ? 100 : 0; }
int cuDriverGetVersion(int *v) { *v = is("old driver") ? 11040 : 13000; return 0; }
int cuDeviceGetCount(int *n) { *n = is("no GPUs") ? 0 : 2; return 0; }
int cuDeviceGetName(char *s, int n, int d) { snprintf(s, n, "stub"); return 0; }
int cuDeviceGetPCIBusId(char *s, int n, int d) { snprintf(s, n, "0:0"); return 0; }
int cuDeviceTotalMem_v2(uint64_t *n, int d) { *n = 1ull << 37; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 9 : a == 76 ? 0 : 1; return 0; }
int cuDevicePrimaryCtxRetain(uintptr_t *c, int d) { *c = 1; return 0; }
int cuCtxGetStreamPriorityRange(int *a, int *b) { *a = *b = 0; return 0; }
int cuMemGetInfo_v2(uint64_t *f, uint64_t *t) { *f = 1 << 20; *t = 1ull << 37; return 0; }
int cuMemGetAllocationGranularity(uint64_t *n, void *p, int o) { *n = 2 << 20; return 0; }
int cuMemCreate(uintptr_t *h, uint64_t n, void *p, uint64_t f) {
  if (is("out of memory")) return 2;
  return make(h);
}
int cuMemRelease(uintptr_t h) { LOST; return gone(); }
int cuMemAddressReserve(void **p, uint64_t n, uint64_t a, uintptr_t at, uint64_t f) { *p = calloc(1, n); return count(1); }
int cuMemAddressFree(void *p, uint64_t n) { LOST; free(p); return gone(); }
int cuMemcpyAsync(void *to, void *from, uint64_t n, uintptr_t s) { memcpy(to, from, n); return 0; }
int cuDeviceGet(int *d, int n) { *d = n; return 0; }
int cuDeviceCanAccessPeer(int *v, int a, int b) { *v = 1; return 0; }
int cuMemHostAlloc(void **p, uint64_t n, int f) { *p = calloc(1, n); return count(1); }
int cuMemFreeHost(void *p) { LOST; free(p); return gone(); }
int cuModuleLoadData(uintptr_t *m, void *image) { *m = 1; return is("bad image") ? 200 : 0; }
int cuModuleGetFunction(uintptr_t *f, uintptr_t m, char *name) { *f = 1; return 0; }
int cuLaunchKernel(void) { LOST; return is("refused launch") ? 701 : 0; }
int cuStreamCreateWithPriority(uintptr_t *h, int f, int p) { return make(h); }
int cuStreamDestroy_v2(uintptr_t h) { LOST; return gone(); }
int cuStreamQuery(uintptr_t s) {
  if (is("fault")) lost = 1;
  LOST;
  return 0;
}
int cuEventCreate(uintptr_t *h, int f) { return make(h); }
int cuEventDestroy_v2(uintptr_t h) { LOST; return gone(); }
int cuGetErrorName(int code, const char **s) {
  *s = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_STUB";
  return 0;
}
int cuGetErrorString(int code, const char **s) { *s = "as the stub says"; return 0; }

static const char *log_of(void) { return is("bad source") ? "line 7: no such thing" : ""; }
int nvrtcVersion(int *a, int *b) { *a = 13; *b = 0; return 0; }
int nvrtcCreateProgram(uintptr_t *p) { return make(p); }
int nvrtcDestroyProgram(uintptr_t *p) { return gone(); }
int nvrtcCompileProgram(void) { return is("bad source") ? 6 : 0; }
int nvrtcGetProgramLogSize(uintptr_t p, uint64_t *n) { *n = strlen(log_of()) + 1; return 0; }
int nvrtcGetProgramLog(uintptr_t p, char *s) { strcpy(s, log_of()); return 0; }
int nvrtcGetCUBINSize(uintptr_t p, uint64_t *n) { *n = 4; return 0; }
int nvrtcGetCUBIN(uintptr_t p, char *s) { memcpy(s, "stub", 4); return 0; }
const char *nvrtcGetErrorString(int code) { return "NVRTC_ERROR_STUB"; }
