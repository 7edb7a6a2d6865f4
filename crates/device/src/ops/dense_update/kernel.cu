// The optimizer step of a dense parameter, bit-identical to `scalar.rs`.
//
//    SGD, Adagrad, Adam:  every element, in parallel
//    row-wise Adagrad:    a warp per row: the mean of squares, then every element
//    LAMB:                the moments and the sums of squares of each block of 16384 elements;
//                         then the total in the order of the blocks; then every element

struct DenseUpdate {
  u64 rule, weights, gradient, first, second, stop;
  u64 elements, dim;
  u64 squares, ratio;  // LAMB: [blocks, 2], [1]
};

KERNEL(dense_update, DenseUpdate, 256) {
  const u64 i = global_thread();
  if (!LESS(i, a.elements)) return;
  if (*(const u32 *)a.stop) return;
  const Rule rule = *(const Rule *)a.rule;
  float *weights = (float *)a.weights, *first = (float *)a.first, *second = (float *)a.second;
  weights[i] = updated(rule, weights[i], ((const float *)a.gradient)[i], first + i, second + i);
}

KERNEL(dense_update_rows, DenseUpdate, 128) {
  const u64 row = global_thread() / WARP;
  if (!LESS(row, a.elements / a.dim)) return;
  if (*(const u32 *)a.stop) return;
  const Rule rule = *(const Rule *)a.rule;
  const u32 lane = lane_of_thread();
  float *weights = (float *)a.weights + row * a.dim, *state = (float *)a.first;
  const float *gradient = (const float *)a.gradient + row * a.dim;
  float squares = 0.0f;
  for (u64 d = lane; lane < 16 && LESS(d, a.dim); d += 16) {
    const float value = gradient[d] + rule.l2 * weights[d];
    squares += value * value;
  }
  float mean = lane == 0 ? state[row] : 0.0f;
  mean += total_of_parts(squares) / (float)a.dim;
  if (lane == 0) state[row] = mean;
  mean = __shfl_sync(ALL_LANES, mean, 0);
  const float factor = rule.learning_rate / (sqrtf(mean) + rule.epsilon);
  const float shrink = shrink_of(rule) - factor * rule.l2;
  // All lanes have read the row's old weights before a lane writes a new one.
  __syncwarp();
  for (u64 d = lane; LESS(d, a.dim); d += WARP)
    weights[d] = shrink * weights[d] - factor * gradient[d];
}

#define LAMB_BLOCK 16384u
#define LAMB_THREADS 512u

KERNEL(dense_update_moments, DenseUpdate, LAMB_THREADS) {
  __shared__ float values[2][LAMB_THREADS];
  const Rule rule = *(const Rule *)a.rule;
  if (*(const u32 *)a.stop) return;
  // Lanes 0 to 15 of the first warp add up the weights' squares, and lanes 16 to 31 those of the
  // directions. Each lane sums one of 16 parts.
  const u32 lane = lane_of_thread(), of = lane / 16, part = lane % 16;
  float sum = 0.0f;
  for (u32 start = 0; start < LAMB_BLOCK; start += LAMB_THREADS) {
    const u64 i = (u64)blockIdx.x * LAMB_BLOCK + start + threadIdx.x;
    float weight = 0.0f, direction = 0.0f;
    if (LESS(i, a.elements)) {
      weight = ((const float *)a.weights)[i];
      float *mean = (float *)a.first + i, *square = (float *)a.second + i;
      update_moments(rule, ((const float *)a.gradient)[i] + rule.l2 * weight, mean, square);
      direction = corrected(rule, *mean, *square) + rule.decoupled * weight;
    }
    values[0][threadIdx.x] = weight * weight;
    values[1][threadIdx.x] = direction * direction;
    __syncthreads();
    if (warp_of_thread() == 0)
      for (u32 column = part; column < LAMB_THREADS; column += 16) sum += values[of][column];
    __syncthreads();
  }
  if (warp_of_thread() != 0) return;
  for (u32 half = 8; half > 0; half /= 2) sum += __shfl_down_sync(ALL_LANES, sum, half);
  if (part == 0) ((float *)a.squares)[2 * blockIdx.x + of] = sum;
}

KERNEL(dense_update_ratio, DenseUpdate, 32) {
  if (threadIdx.x != 0) return;
  if (*(const u32 *)a.stop) return;
  float sums[2] = {0.0f, 0.0f};
  const u64 blocks = (a.elements + LAMB_BLOCK - 1) / LAMB_BLOCK;
  for (u64 block = 0; block < blocks; ++block) {
    sums[0] += ((const float *)a.squares)[2 * block];
    sums[1] += ((const float *)a.squares)[2 * block + 1];
  }
  const bool both = sums[0] > 0.0f && sums[1] > 0.0f;
  *(float *)a.ratio = both ? sqrtf(sums[0]) / sqrtf(sums[1]) : 1.0f;
}

KERNEL(dense_update_apply, DenseUpdate, 256) {
  const u64 i = global_thread();
  if (!LESS(i, a.elements)) return;
  if (*(const u32 *)a.stop) return;
  const Rule rule = *(const Rule *)a.rule;
  float *weights = (float *)a.weights;
  const float rate = rule.learning_rate * *(const float *)a.ratio, weight = weights[i];
  const float mean = ((const float *)a.first)[i], square = ((const float *)a.second)[i];
  weights[i] = weight - rate * (corrected(rule, mean, square) + rule.decoupled * weight);
}
