/* A stub of libnvrtc.so for tests, which "compiles" a source to a text that names the version. MAJOR and MINOR are set
 * when the stub is compiled. Without MAJOR it has only one function, and with FAILS every compilation fails. */
#include <stdio.h>
#include <string.h>

const char *nvrtcGetErrorString(int code) { return "as the stub was told"; }
#ifdef MAJOR
#ifndef MINOR
#define MINOR 0
#endif
static char image[64];
int nvrtcVersion(int *major, int *minor) { return *major = MAJOR, *minor = MINOR, 0; }
int nvrtcCreateProgram(void **program, const char *source, const char *name, int count, const char **a, const char **b) {
  *program = image;
  return 0;
}
int nvrtcCompileProgram(void *program, int count, const char **options) {
#ifdef FAILS
  return 6;
#endif
  snprintf(image, sizeof image, "code of NVRTC %d.%d", MAJOR, MINOR);
  return 0;
}
int nvrtcGetProgramLogSize(void *program, size_t *bytes) { return *bytes = 1, 0; }
int nvrtcGetProgramLog(void *program, char *log) { return *log = 0, 0; }
int nvrtcGetCUBINSize(void *program, size_t *bytes) { return *bytes = strlen(image), 0; }
int nvrtcGetCUBIN(void *program, char *cubin) { return memcpy(cubin, image, strlen(image)), 0; }
int nvrtcDestroyProgram(void **program) { return 0; }
#endif
