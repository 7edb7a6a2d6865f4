// The dot interaction, bit-identical to `scalar.rs`. A block processes one sample and keeps its
// vectors in shared memory, so that each vector is read once, not once per pair.
//
//   forward   out = [dense ‖ t_i · t_j for the kept pairs (i, j)], each sum over d in order
//   backward  for every vector i and column d, in parallel:
//               sum = gradient of the dense part (vector 0) or 0
//               for every partner j, in order:  sum += dz(i, j) · t_j[d]      (twice where j is i)

struct Interaction {
  u64 dense, pooled;       // [B, D] or 0, [B, F·D]
  u64 out;                 // [B, width]: forward writes it, backward reads its gradient
  u64 d_dense, d_pooled;
  u32 batch, features, dim, width, has_dense, upper, itself, padding;
};
#define INTERACTION_THREADS 256u

DEVICE u32 vectors_of(const Interaction &a) { return a.features + a.has_dense; }

// Rows have D + 1 elements, so that neighboring vectors begin in different banks of shared
// memory.
DEVICE void load_vectors(const Interaction &a, float *vectors) {
  const u32 count = vectors_of(a) * a.dim;
  for (u32 i = threadIdx.x; LESS(i, count); i += INTERACTION_THREADS) {
    const u32 vector = i / a.dim, d = i % a.dim;
    const float *from = a.has_dense && vector == 0
        ? (const float *)a.dense + (u64)blockIdx.x * a.dim
        : (const float *)a.pooled + ((u64)blockIdx.x * a.features + vector - a.has_dense) * a.dim;
    vectors[vector * (a.dim + 1) + d] = from[d];
  }
}

// Returns the number of the pair of `i` and `j`, in either order, among the kept pairs.
DEVICE u32 pair_of(const Interaction &a, u32 i, u32 j) {
  const u32 low = i < j ? i : j, high = i < j ? j : i, n = vectors_of(a);
  if (!a.upper) return a.itself ? high * (high + 1) / 2 + low : high * (high - 1) / 2 + low;
  // Rows before `low` have n, n − 1, … pairs, or one fewer each if the diagonal is not kept.
  const u32 before = a.itself ? low * n - low * (low - 1) / 2 : low * (n - 1) - low * (low - 1) / 2;
  return before + high - low - (a.itself ? 0 : 1);
}

KERNEL(interaction_forward, Interaction, INTERACTION_THREADS) {
  DYNAMIC_SHARED(float, vectors);
  load_vectors(a, vectors);
  __syncthreads();
  const u32 n = vectors_of(a), direct = a.has_dense ? a.dim : 0;
  float *out = (float *)a.out + (u64)blockIdx.x * a.width;
  for (u32 d = threadIdx.x; LESS(d, direct); d += INTERACTION_THREADS) out[d] = vectors[d];
  for (u32 at = threadIdx.x; LESS(at, n * n); at += INTERACTION_THREADS) {
    const u32 i = at / n, j = at % n;
    if (j > i || (j == i && !a.itself)) continue;
    float sum = 0.0f;
    for (u32 d = 0; d < a.dim; ++d)
      sum += vectors[i * (a.dim + 1) + d] * vectors[j * (a.dim + 1) + d];
    out[direct + pair_of(a, i, j)] = sum;
  }
}

KERNEL(interaction_backward, Interaction, INTERACTION_THREADS) {
  DYNAMIC_SHARED(float, vectors);
  load_vectors(a, vectors);
  __syncthreads();
  const u32 n = vectors_of(a), direct = a.has_dense ? a.dim : 0;
  const float *d_out = (const float *)a.out + (u64)blockIdx.x * a.width;
  for (u32 at = threadIdx.x; LESS(at, n * a.dim); at += INTERACTION_THREADS) {
    const u32 i = at / a.dim, d = at % a.dim;
    const bool is_dense = a.has_dense && i == 0;
    float sum = is_dense ? d_out[d] : 0.0f;
    for (u32 j = 0; j < n; ++j) {
      if (j == i && !a.itself) continue;
      const float value = d_out[direct + pair_of(a, i, j)] * vectors[j * (a.dim + 1) + d];
      sum += value;
      if (j == i) sum += value;
    }
    if (is_dense)
      ((float *)a.d_dense)[(u64)blockIdx.x * a.dim + d] = sum;
    else
      ((float *)a.d_pooled)[((u64)blockIdx.x * a.features + i - a.has_dense) * a.dim + d] = sum;
  }
}
