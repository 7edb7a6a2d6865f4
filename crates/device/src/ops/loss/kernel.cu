// Computes loss, gradient and probability of each sample in f64, like `scalar.rs`. The losses are
// summed in the order of `mod.rs`: each chunk of 512 samples, and then the sums of the chunks in
// order.
//
//   bce = max(z, 0) − z·y + ln(1 + e^−|z|);  mse = (σ(z) − y)²
//
// 1. A thread adds the losses of one chunk in order. To use whole cache lines, 16 neighboring
//   threads read 16 neighboring losses of a chunk into shared memory. At least 9 loads are then
//   in flight (`loads_in_flight` of kernels.tsv).
//
// A non-finite sum sets `stop`, which the updates read. A lookup that found an out-of-range id
// also sets it.

struct Loss {
  u64 logits, labels, gradient, probabilities;
  u64 losses, sum, stop;  // f64 [B], f64 [1], u32 [1]
  u64 normaliser;         // f64 [1], on the device
  u64 first_bad;          // u64 [1]
  u32 samples, is_mse;
};
#define SAMPLES_PER_CHUNK 512u
#define LOSS_THREADS 128u
#define LOSSES_PER_PASS 16u
#define NO_BAD 0xffffffffffffffffull
#define NOT_FINITE 1u
#define BAD_ID 2u

KERNEL(loss_samples, Loss, 256) {
  const u64 i = global_thread();
  if (!LESS(i, a.samples)) return;
  const double z = ((const float *)a.logits)[i], y = ((const float *)a.labels)[i];
  const double e = exp(-fabs(z));
  const double probability = z < 0.0 ? e / (1.0 + e) : 1.0 / (1.0 + e);
  const double difference = probability - y;
  double loss, gradient;
  if (a.is_mse) {
    loss = difference * difference;
    gradient = (difference + difference) * probability * (1.0 - probability);
  } else {
    loss = (z > 0.0 ? z : 0.0) - z * y + log1p(e);
    gradient = difference;
  }
  ((double *)a.losses)[i] = loss;
  ((float *)a.gradient)[i] = (float)(gradient / *(const double *)a.normaliser);
  ((float *)a.probabilities)[i] = (float)probability;
}

KERNEL(loss_sum, Loss, LOSS_THREADS) {
  __shared__ double chunks[LOSS_THREADS], losses[LOSS_THREADS][LOSSES_PER_PASS + 1];
  const u32 count = (a.samples + SAMPLES_PER_CHUNK - 1) / SAMPLES_PER_CHUNK;
  double total = 0.0;
  for (u32 start = 0; start < count; start += LOSS_THREADS) {
    double sum = 0.0;
    for (u32 from = 0; from < SAMPLES_PER_CHUNK; from += LOSSES_PER_PASS) {
      const u32 at = threadIdx.x % LOSSES_PER_PASS, first = threadIdx.x / LOSSES_PER_PASS;
      double read[LOSSES_PER_PASS] = {};
      for (u32 k = 0; k < LOSSES_PER_PASS; ++k) {
        const u64 chunk = start + first + k * (LOSS_THREADS / LOSSES_PER_PASS);
        const u64 i = chunk * SAMPLES_PER_CHUNK + from + at;
        if (LESS(i, a.samples)) read[k] = __ldg((const double *)a.losses + i);  // in flight
      }
      for (u32 k = 0; k < LOSSES_PER_PASS; ++k)
        losses[first + k * (LOSS_THREADS / LOSSES_PER_PASS)][at] = read[k];
      __syncthreads();
      for (u32 k = 0; k < LOSSES_PER_PASS; ++k) sum += losses[threadIdx.x][k];
      __syncthreads();
    }
    chunks[threadIdx.x] = sum;
    __syncthreads();
    // The barriers of the next pass separate these reads from the next writes.
    for (u32 chunk = 0; threadIdx.x == 0 && chunk < LOSS_THREADS; ++chunk) total += chunks[chunk];
  }
  if (threadIdx.x != 0) return;
  *(double *)a.sum = total;
  if (!(fabs(total) <= 1.7976931348623157e308)) atomicOr((u32 *)a.stop, NOT_FINITE);
  if (*(const u64 *)a.first_bad != NO_BAD) atomicOr((u32 *)a.stop, BAD_ID);
}
