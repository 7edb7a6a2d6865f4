// Exclusive sums of integers, out_i = Σ_(j<i) in_j, and their total.
//
//   sums     a block per 1024 numbers: their sum
//   blocks   one block: exclusive sums of those sums, 1024 at a time, and the total
//   write    a block per 1024 numbers: exclusive sums within it, plus the sum before it
//
// The numbers are integers, so any order of additions gives the same bytes. No block waits for
// another block. The output may be the input. A block sums by warps, with shuffles within a warp
// and shared memory between warps.

struct PrefixSum {
  u64 in, out, sums, total;  // u32 [count], u32 or u64 [count], u64 [blocks], as `out` [1]
  u64 count;
  u32 is_wide, padding;
};
#define SCAN_THREADS 1024u

// Returns the exclusive sum over the block's threads. The sum over all threads is stored in
// `*all`.
DEVICE u64 block_sum(u64 value, u64 *warps, u64 *all) {
  const u32 lane = lane_of_thread(), warp = warp_of_thread();
  u64 sum = value;
  for (u32 delta = 1; delta < WARP; delta *= 2) {
    const u64 other = __shfl_up_sync(ALL_LANES, sum, delta);
    if (lane >= delta) sum += other;
  }
  if (lane == WARP - 1) warps[warp] = sum;
  __syncthreads();
  u64 before = 0, total = 0;
  for (u32 w = 0; w < SCAN_THREADS / WARP; ++w) {
    if (w < warp) before += warps[w];
    total += warps[w];
  }
  // All threads have read `warps` before the next call overwrites it.
  __syncthreads();
  *all = total;
  return before + sum - value;
}

KERNEL(prefix_sum_sums, PrefixSum, SCAN_THREADS) {
  __shared__ u64 warps[SCAN_THREADS / WARP];
  const u64 i = global_thread();
  const u64 value = LESS(i, a.count) ? ((const u32 *)a.in)[i] : 0;
  u64 all;
  block_sum(value, warps, &all);
  if (threadIdx.x == 0) ((u64 *)a.sums)[blockIdx.x] = all;
}

KERNEL(prefix_sum_blocks, PrefixSum, SCAN_THREADS) {
  __shared__ u64 warps[SCAN_THREADS / WARP];
  u64 *sums = (u64 *)a.sums, before = 0;
  const u64 blocks = (a.count + SCAN_THREADS - 1) / SCAN_THREADS;
  for (u64 start = 0; start < blocks; start += SCAN_THREADS) {
    const u64 i = start + threadIdx.x;
    const u64 value = LESS(i, blocks) ? sums[i] : 0;
    u64 all;
    const u64 own = block_sum(value, warps, &all);
    if (LESS(i, blocks)) sums[i] = before + own;
    before += all;
  }
  if (threadIdx.x != 0 || a.total == 0) return;
  if (a.is_wide) *(u64 *)a.total = before; else *(u32 *)a.total = (u32)before;
}

KERNEL(prefix_sum_write, PrefixSum, SCAN_THREADS) {
  __shared__ u64 warps[SCAN_THREADS / WARP];
  const u64 i = global_thread();
  const u64 value = LESS(i, a.count) ? ((const u32 *)a.in)[i] : 0;
  u64 all;
  const u64 own = ((const u64 *)a.sums)[blockIdx.x] + block_sum(value, warps, &all);
  if (!LESS(i, a.count)) return;
  if (a.is_wide) ((u64 *)a.out)[i] = own; else ((u32 *)a.out)[i] = (u32)own;
}
