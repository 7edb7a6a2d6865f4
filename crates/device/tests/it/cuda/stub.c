/* A stub of libcuda.so.1 for tests. It runs no kernels, and writes each call, its stream and the
 * bytes of its arguments to the file that ROWMILL_STUB names. Device memory is host memory. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static FILE *out(void) {
  static FILE *file;
  if (!file) file = fopen(getenv("ROWMILL_STUB"), "a");
  return file;
}
#define SAY(...) (fprintf(out(), __VA_ARGS__), fflush(out()), 0)

static uintptr_t next = 1;

/* The device is as slow as possible: it has completed only the work that the host has waited for.
 * `recorded` counts the records of events, and the events recorded up to `done` have passed. */
static long moments[1 << 16], recorded, done;
static unsigned event_flags[1 << 16];

/* Quarters of a millisecond of the host's clock. */
static long host_time(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 4000 + now.tv_nsec / 250000;
}
/* The host's time at moment 0, once the host has waited for an event. */
static long zero;

/* The result that every later call of a context returns after the device has failed, or 0. Retaining
 * the primary context again clears it. */
static int fault;

int cuInit(unsigned flags) { return SAY("cuInit\n"); }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
/* There is one device, or as many as ROWMILL_STUB_DEVICES states. All names but the first contain the device's number. */
int cuDeviceGetCount(int *count) {
  const char *devices = getenv("ROWMILL_STUB_DEVICES");
  *count = devices ? atoi(devices) : 1;
  return 0;
}
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int len, int device) {
  snprintf(name, len, device ? "stub %d" : "stub", device);
  return 0;
}
/* Attribute 75 is the major compute capability, and attribute 97 the largest shared memory of a block. */
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? 9 : attribute == 97 ? 227 << 10 : 0;
  return 0;
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
  return SAY("cuFuncSetAttribute %s %d %d\n", (char *)function, attribute, value);
}
int cuDevicePrimaryCtxRetain(void **context, int device) { fault = 0; *context = (void *)1; return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = 1000; *total = 2000; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "as the stub was told"; return 0; }
int cuModuleLoadData(void **module, const void *image) { *module = (void *)next++; return SAY("cuModuleLoadData\n"); }
int cuModuleGetFunction(void **function, void *module, const char *name) {
  if (strstr(name, "missing")) return 500;
  *function = strdup(name);
  return 0;
}
int cuMemAlloc_v2(uintptr_t *address, size_t bytes) {
  if (bytes > (size_t)1 << 40) return 2;
  *address = (uintptr_t)calloc(1, bytes);
  return SAY("cuMemAlloc %zu\n", bytes);
}
int cuMemFree_v2(uintptr_t address) { free((void *)address); return SAY("cuMemFree\n"); }
int cuMemHostAlloc(void **start, size_t bytes, unsigned flags) { *start = malloc(bytes); return SAY("cuMemHostAlloc %zu\n", bytes); }
int cuMemFreeHost(void *start) { free(start); return SAY("cuMemFreeHost\n"); }
int cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t bytes, void *stream) {
  memcpy((void *)to, from, bytes);
  return SAY("cuMemcpyHtoDAsync %zu stream %p\n", bytes, stream);
}
int cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t bytes, void *stream) {
  memcpy(to, (void *)from, bytes);
  return SAY("cuMemcpyDtoHAsync %zu stream %p\n", bytes, stream);
}
int cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, void *stream) {
  memmove((void *)to, (void *)from, bytes);
  return SAY("cuMemcpyDtoDAsync %zu stream %p\n", bytes, stream);
}
int cuMemsetD8Async(uintptr_t address, unsigned char byte, size_t count, void *stream) {
  memset((void *)address, byte, count);
  return SAY("cuMemsetD8Async %zu stream %p\n", count, stream);
}
int cuStreamCreate(void **stream, unsigned flags) { *stream = (void *)next++; return SAY("cuStreamCreate %u\n", flags); }
int cuStreamDestroy_v2(void *stream) { return SAY("cuStreamDestroy\n"); }
int cuStreamSynchronize(void *stream) { done = recorded; SAY("cuStreamSynchronize stream %p\n", stream); return fault; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return SAY("cuStreamWaitEvent stream %p\n", stream); }
int cuEventCreate(void **event, unsigned flags) {
  event_flags[next % (1 << 16)] = flags;
  *event = (void *)next++;
  return SAY("cuEventCreate %u\n", flags);
}
int cuEventDestroy_v2(void *event) { return SAY("cuEventDestroy\n"); }
int cuEventRecord(void *event, void *stream) {
  /* A device cannot reach an event before the host records it. */
  const long now = zero ? host_time() - zero : 0;
  recorded = (recorded < now ? now : recorded) + 1;
  moments[(uintptr_t)event % (1 << 16)] = recorded;
  return SAY("cuEventRecord stream %p\n", stream);
}
int cuEventSynchronize(void *event) {
  const long moment = moments[(uintptr_t)event % (1 << 16)];
  if (moment > done) done = moment;
  zero = host_time() - moment;
  return SAY("cuEventSynchronize\n");
}
/* The result 600 is CUDA_ERROR_NOT_READY. */
int cuEventQuery(void *event) { return moments[(uintptr_t)event % (1 << 16)] > done ? 600 : 0; }
#ifdef OLD_DRIVER
#define cuEventElapsedTime_v2 cuEventElapsedTime
#endif
/* At least a quarter of a millisecond passes from each record of an event to the next. The result 400 is
 * CUDA_ERROR_INVALID_HANDLE, for an event that records no time. */
int cuEventElapsedTime_v2(float *elapsed, void *from, void *to) {
  if ((event_flags[(uintptr_t)from % (1 << 16)] | event_flags[(uintptr_t)to % (1 << 16)]) & 2) return 400;
  *elapsed = 0.25f * (moments[(uintptr_t)to % (1 << 16)] - moments[(uintptr_t)from % (1 << 16)]);
  return 0;
}
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
  if (fault) return fault;
  if (!strcmp(function, "refused")) return 1;
  if (!strcmp(function, "faulty")) fault = 700;
  if (parameters || extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4]) return 1;
  const unsigned char *bytes = extra[1];
  const size_t count = *(size_t *)extra[3];
  SAY("cuLaunchKernel %s [%u %u %u] [%u %u %u] %u stream %p ", (char *)function, x, y, z, threads, ty, tz, shared, stream);
  for (size_t i = 0; i < count; ++i) SAY("%02x", bytes[i]);
  return SAY("\n");
}
