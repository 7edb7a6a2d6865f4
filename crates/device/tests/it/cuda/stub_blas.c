/* A stub of libcublasLt.so for tests. It computes nothing, and writes each product with its descriptors to the file that
 * ROWMILL_STUB names. It offers no algorithm for products whose result has 13 columns. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *out(void) {
  static FILE *file;
  if (!file) file = fopen(getenv("ROWMILL_STUB"), "a");
  return file;
}
#define SAY(...) (fprintf(out(), __VA_ARGS__), fflush(out()), 0)

/* A descriptor must not change after an algorithm was chosen for it, because a queued product may refer to it. */
typedef struct { int compute, scale, attributes[16], planned; uintptr_t bias; } Operation;
typedef struct { int type; uint64_t rows, columns; int64_t step; } Layout;
typedef struct { uint64_t workspace; unsigned alignments[16]; } Preference;
/* The layout must match cublasLtMatmulHeuristicResult_t. */
typedef struct { uint64_t algorithm[8]; size_t workspace; int state; float waves; int reserved[4]; } Found;

size_t cublasLtGetVersion(void) { return 130100; }
const char *cublasLtGetStatusString(int status) { return "as the stub was told"; }
int cublasLtCreate(void **handle) { *handle = (void *)77; return SAY("cublasLtCreate\n"); }
int cublasLtDestroy(void *handle) { return SAY("cublasLtDestroy\n"); }
int cublasLtMatmulDescCreate(Operation **operation, int compute, int scale) {
  *operation = calloc(1, sizeof(Operation));
  (*operation)->compute = compute, (*operation)->scale = scale;
  return 0;
}
int cublasLtMatmulDescDestroy(Operation *operation) { free(operation); return 0; }
int cublasLtMatmulDescSetAttribute(Operation *operation, int attribute, const void *value, size_t bytes) {
  if (operation->planned) return 7;
  if (attribute == 8) return memcpy(&operation->bias, value, bytes), 0;
  return bytes == 4 ? (memcpy(&operation->attributes[attribute], value, 4), 0) : 7;
}
int cublasLtMatrixLayoutCreate(Layout **layout, int type, uint64_t rows, uint64_t columns, int64_t step) {
  *layout = malloc(sizeof(Layout));
  **layout = (Layout){type, rows, columns, step};
  return 0;
}
int cublasLtMatrixLayoutDestroy(Layout *layout) { free(layout); return 0; }
int cublasLtMatmulPreferenceCreate(Preference **preference) { *preference = calloc(1, sizeof(Preference)); return 0; }
int cublasLtMatmulPreferenceDestroy(Preference *preference) { free(preference); return 0; }
int cublasLtMatmulPreferenceSetAttribute(Preference *preference, int attribute, const void *value, size_t bytes) {
  if (attribute == 1) return memcpy(&preference->workspace, value, bytes), 0;
  return memcpy(&preference->alignments[attribute], value, bytes), 0;
}
int cublasLtMatmulAlgoGetHeuristic(void *handle, Operation *operation, Layout *a, Layout *b, Layout *c, Layout *d,
                                   Preference *preference, int wanted, Found *found, int *count) {
  operation->planned = 1;
  *count = c->rows != 13;
  found->algorithm[0] = 0xa1b2, found->workspace = 4096;
  return SAY("cublasLtMatmulAlgoGetHeuristic workspace %lu alignments %u %u %u %u\n", preference->workspace,
             preference->alignments[5], preference->alignments[6], preference->alignments[7], preference->alignments[8]);
}
int cublasLtMatmul(void *handle, Operation *operation, const float *alpha, void *a, Layout *A, void *b, Layout *B,
                   const float *beta, void *c, Layout *C, void *d, Layout *D, const uint64_t *algorithm, void *workspace,
                   size_t bytes, void *stream) {
  if (handle != (void *)77 || algorithm[0] != 0xa1b2 || c != d || C != D || !workspace) return 7;
  SAY("cublasLtMatmul compute %d scale %d transposed %d %d epilogue %d bias %d", operation->compute, operation->scale,
      operation->attributes[3], operation->attributes[4], operation->attributes[7], operation->bias != 0);
  const Layout *layouts[3] = {A, B, D};
  for (int i = 0; i < 3; ++i)
    SAY(" [%lu %lu] type %d step %ld", layouts[i]->rows, layouts[i]->columns, layouts[i]->type, layouts[i]->step);
  return SAY(" alpha %g beta %g workspace %zu stream %p\n", *alpha, *beta, bytes, stream);
}
