// The products of a linear layer in a plain form, for the emulator and as the reference for
// cuBLASLt.
//
//   for every element (m, n), in parallel:
//     sum = start(m, n);  for k in order:  sum += A(m, k) · B(k, n);  C(m, n) = epilogue(sum)
//
// One kernel computes all three products through its strides: Y = X Wᵀ + bias, dX += dY W, dW =
// dYᵀ X. A block computes 16 × 16 elements of C. It passes 16 columns of A and 16 rows of B at a
// time through shared memory, so that each is read once per tile. The epilogue is ReLU, or 0
// where the mask (the output of a ReLU) is not above 0. The sum is then rounded to the result's
// format. Products of two bf16 values are exact in f32. After a product of cuBLASLt,
// `mask_product` applies the mask. Column sums (gradients of biases) add 64 rows at a time, in
// order, and then add these sums in order.

struct Gemm {
  u64 a, b, c, bias, mask;
  u64 a_row, a_column, b_row, b_column;  // strides in elements
  u32 m, n, k, start, is_relu;
  u32 factor_format, format, mask_format;  // of A and B, C, mask
};
#define EDGE 16u
#define START_BIAS 1u
#define START_OLD 2u

// Rounds to the nearest bf16, ties to even. NaN stays NaN.
DEVICE u16 nearest_bf16(float value) {
  const u32 bits = bits_of(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)(bits >> 16 | 0x40u);
  return (u16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

DEVICE void store_nearest(u64 array, u32 format, u64 index, float value) {
  if (format == FORMAT_F32)
    ((float *)array)[index] = value;
  else
    ((u16 *)array)[index] = nearest_bf16(value);
}

KERNEL(gemm, Gemm, EDGE *EDGE) {
  // Rows have 17 elements, so that no two values of a column lie in one bank of shared memory.
  __shared__ float left[EDGE][EDGE + 1], right[EDGE][EDGE + 1];
  const u32 x = threadIdx.x % EDGE, y = threadIdx.x / EDGE;
  const u32 row = blockIdx.y * EDGE + y, column = blockIdx.x * EDGE + x;
  const bool inside = LESS(row, a.m) && LESS(column, a.n);
  float sum = 0.0f;
  if (inside && a.start == START_BIAS) sum = ((const float *)a.bias)[column];
  if (inside && a.start == START_OLD) sum = stored(a.c, a.format, (u64)row * a.n + column);
  for (u32 first = 0; first < a.k; first += EDGE) {
    const u32 left_k = first + x, right_k = first + y;
    float value = 0.0f;
    if (LESS(row, a.m) && LESS(left_k, a.k))
      value = stored(a.a, a.factor_format, row * a.a_row + left_k * a.a_column);
    left[y][x] = value;
    value = 0.0f;
    if (LESS(right_k, a.k) && LESS(column, a.n))
      value = stored(a.b, a.factor_format, right_k * a.b_row + column * a.b_column);
    right[y][x] = value;
    __syncthreads();
    const u32 count = a.k - first < EDGE ? a.k - first : EDGE;
    for (u32 k = 0; k < count; ++k) sum += left[y][k] * right[k][x];
    __syncthreads();
  }
  if (!inside) return;
  const u64 at = (u64)row * a.n + column;
  // The comparison is false for NaN, so NaN stays NaN.
  if (a.is_relu && sum < 0.0f) sum = 0.0f;
  if (a.mask && stored(a.mask, a.mask_format, at) <= 0.0f) sum = 0.0f;
  store_nearest(a.c, a.format, at, sum);
}

struct Mask {
  u64 mask, c;
  u64 elements;
  u32 mask_format, format;
};

KERNEL(mask_product, Mask, 256) {
  const u64 i = global_thread();
  if (!LESS(i, a.elements)) return;
  if (stored(a.mask, a.mask_format, i) <= 0.0f) store_nearest(a.c, a.format, i, 0.0f);
}

struct Round {
  u64 from, to;  // f32, bf16
  u64 elements;
};

KERNEL(round_bf16, Round, 256) {
  const u64 i = global_thread();
  if (!LESS(i, a.elements)) return;
  ((u16 *)a.to)[i] = nearest_bf16(((const float *)a.from)[i]);
}

struct ColumnSums {
  u64 matrix, sums, partials;  // [rows, columns], [columns], [⌈rows / 64⌉, columns]
  u32 rows, columns, format, padding;
};
#define BLOCK_ROWS 64u

KERNEL(column_sums_blocks, ColumnSums, 128) {
  const u32 column = blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * BLOCK_ROWS;
  if (!LESS(column, a.columns)) return;
  float sum = 0.0f;
  for (u32 row = first; row < first + BLOCK_ROWS && LESS(row, a.rows); ++row)
    sum += stored(a.matrix, a.format, (u64)row * a.columns + column);
  ((float *)a.partials)[(u64)blockIdx.y * a.columns + column] = sum;
}

KERNEL(column_sums_total, ColumnSums, 128) {
  const u64 column = global_thread();
  if (!LESS(column, a.columns)) return;
  float sum = 0.0f;
  const u32 blocks = (a.rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
  for (u32 block = 0; block < blocks; ++block)
    sum += ((const float *)a.partials)[(u64)block * a.columns + column];
  ((float *)a.sums)[column] = sum;
}
