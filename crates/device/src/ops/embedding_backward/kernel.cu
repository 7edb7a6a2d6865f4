// Gradients of lookups, sorted and summed by row, and the row's rule in the same pass; the bytes of
// `scalar.rs`. No float is added by an atomic, so the order of every sum is that of the oracle.
//
//   pairs     for every position i, in parallel:  pair_i = row of id_i « bits | place of its gradient
//   sort      stable, by row: digits of 8 bits, lowest first: count, scan, scatter
//   heads     head_i = row_i ≠ row_(i−1);  u_i = Σ_(j<i) head_j (a scan);  start_(u_i) = i
//   partials  rows of more than 512 ids: each 512 of them summed, in order
//   updated   for every tile, in parallel: distinct rows = heads before its end − before its start
//   update    for every row, in parallel: sum = Σ gradients (or Σ partials), in order; its rule
//
// 1. A pair holds row and place in 64 bits, so that the sort moves one array.
// 2. Places of partials need no scan: of the parts of one row at most one begins in any 512
//    positions, and at most two rows of more than 512 ids meet there, one of which begins there.
// 3. A block waits for no other: what needs all blocks is another launch.

#define NO_BAD 0xffffffffffffffffull
#define IDS_PER_PART 512u

// Where the gradient of a position is, and its factor.
struct Source {
  u64 place;
  float factor;
  u32 padding;
};

struct Pairs {
  u64 tiles, slots, ids, offsets;
  u64 weights, scales, sources;  // 0 without factors; `sources` too
  u64 pairs, first_bad;
  u32 features, batch, payload_bits, is_wide;
};

KERNEL(embedding_backward_pairs, Pairs, 256) {
  const u64 *offsets = (const u64 *)a.offsets;
  const u64 bags = (u64)a.features * a.batch, position = global_thread();
  if (!LESS(position, offsets[bags])) return;
  // The last bag that begins at or before the position; empty ones before it begin there too.
  u64 low = 0, high = bags;
  while (high - low > 1) {
    const u64 middle = (low + high) / 2;
    if (offsets[middle] <= position) low = middle; else high = middle;
  }
  const Slot slot = ((const Slot *)a.slots)[low / a.batch];
  const Tile tile = ((const Tile *)a.tiles)[slot.tile];
  const u64 id = id_at(a.ids, a.is_wide, position);
  if (!LESS(id, tile.rows)) atomicMin((u64 *)a.first_bad, position);
  const u64 place = place_of(slot, low % a.batch, position);
  u64 payload = place;
  if (a.sources) {
    const float weight = a.weights ? ((const float *)a.weights)[position] : 1.0f;
    const float scale = a.scales ? ((const float *)a.scales)[low] : 1.0f;
    ((Source *)a.sources)[position] = {place, weight * scale, 0};
    payload = position;
  }
  ((u64 *)a.pairs)[position] = (tile.first_row + id) << a.payload_bits | payload;
}

// One pass of the sort. A tile of 2048 pairs has a block.
struct Sort {
  u64 from, to, counts;  // counts [256, tiles]
  u64 count;             // pairs there are, on the device
  u32 shift, tiles;
};
#define DIGITS 256u
#define ROUNDS 8u
#define SORT_WARPS 8u
#define PAIRS_PER_TILE (ROUNDS * SORT_WARPS * WARP)

KERNEL(sort_count, Sort, DIGITS) {
  __shared__ u32 histogram[DIGITS];
  const u64 count = *(const u64 *)a.count, first = (u64)blockIdx.x * PAIRS_PER_TILE;
  histogram[threadIdx.x] = 0;
  __syncthreads();
  for (u32 round = 0; round < ROUNDS; ++round) {
    const u64 i = first + round * DIGITS + threadIdx.x;
    if (LESS(i, count)) {
      const u32 digit = (u32)(((const u64 *)a.from)[i] >> a.shift) % DIGITS;
      atomicAdd(&histogram[digit], 1u);
    }
  }
  __syncthreads();
  ((u32 *)a.counts)[threadIdx.x * a.tiles + blockIdx.x] = histogram[threadIdx.x];
}

KERNEL(sort_scatter, Sort, DIGITS) {
  __shared__ u32 counted[SORT_WARPS][DIGITS];
  const u64 count = *(const u64 *)a.count;
  const u32 lane = lane_of_thread(), warp = warp_of_thread();
  const u64 first = (u64)blockIdx.x * PAIRS_PER_TILE + warp * (ROUNDS * WARP);
  u64 pairs[ROUNDS];
  u32 ranks[ROUNDS];
  for (u32 w = 0; w < SORT_WARPS; ++w) counted[w][threadIdx.x] = 0;
  __syncthreads();
  // A warp takes its pairs in order: the rank of each among those of its digit and warp.
  for (u32 round = 0; round < ROUNDS; ++round) {
    const u64 i = first + round * WARP + lane;
    const bool there = LESS(i, count);
    pairs[round] = there ? ((const u64 *)a.from)[i] : 0;
    const u32 digit = there ? (u32)(pairs[round] >> a.shift) % DIGITS : DIGITS;
    const u32 peers = __match_any_sync(ALL_LANES, digit);
    const u32 before = there ? counted[warp][digit] : 0;
    ranks[round] = before + __popc(peers & ((1u << lane) - 1));
    __syncwarp();
    if (there && lane == (u32)__ffs((int)peers) - 1) counted[warp][digit] = before + __popc(peers);
    __syncwarp();
  }
  __syncthreads();
  // Thread d: where the pairs of digit d go, warp after warp.
  u32 place = ((const u32 *)a.counts)[threadIdx.x * a.tiles + blockIdx.x];
  for (u32 w = 0; w < SORT_WARPS; ++w) {
    const u32 own = counted[w][threadIdx.x];
    counted[w][threadIdx.x] = place;
    place += own;
  }
  __syncthreads();
  for (u32 round = 0; round < ROUNDS; ++round) {
    const u64 i = first + round * WARP + lane;
    if (LESS(i, count)) {
      const u32 digit = (u32)(pairs[round] >> a.shift) % DIGITS;
      ((u64 *)a.to)[counted[warp][digit] + ranks[round]] = pairs[round];
    }
  }
}

struct Heads {
  u64 pairs, count, heads, indices, unique, starts;
  u64 capacity;
  u32 payload_bits;
};

KERNEL(embedding_backward_heads, Heads, 256) {
  const u64 i = global_thread();
  if (!LESS(i, a.capacity)) return;
  const u64 *pairs = (const u64 *)a.pairs;
  u32 head = 0;
  if (LESS(i, *(const u64 *)a.count))
    head = i == 0 || pairs[i] >> a.payload_bits != pairs[i - 1] >> a.payload_bits;
  ((u32 *)a.heads)[i] = head;
}

KERNEL(embedding_backward_starts, Heads, 256) {
  const u64 i = global_thread(), count = *(const u64 *)a.count;
  u32 *starts = (u32 *)a.starts;
  if (i == 0) starts[*(const u32 *)a.unique] = (u32)count;
  if (!LESS(i, count)) return;
  if (((const u32 *)a.heads)[i]) starts[((const u32 *)a.indices)[i]] = (u32)i;
}

struct Update {
  u64 tiles, rule, pairs, sources, gradient;
  u64 starts, unique, heads, indices, count;
  u64 partials, first_bad, stop;
  u32 tile_count, payload_bits, widest, padding;
};

// The tile of a row that is counted over all tiles.
DEVICE u32 tile_of(const Update &a, u64 row) {
  u32 low = 0, high = a.tile_count;
  while (high - low > 1) {
    const u32 middle = (low + high) / 2;
    if (((const Tile *)a.tiles)[middle].first_row <= row) low = middle; else high = middle;
  }
  return low;
}

// Σ of the gradients of the sorted positions `start..end` in one column, in order.
DEVICE float sum_gradients(const Update &a, u64 start, u64 end, u32 column) {
  const u64 mask = (1ull << a.payload_bits) - 1;
  float sum = 0.0f;
  for (u64 i = start; i < end; ++i) {
    const u64 payload = ((const u64 *)a.pairs)[i] & mask;
    if (a.sources) {
      const Source source = ((const Source *)a.sources)[payload];
      sum += source.factor * ((const float *)a.gradient)[source.place + column];
    } else {
      sum += ((const float *)a.gradient)[payload + column];
    }
  }
  return sum;
}

// Where the partial sum of the part that begins at `i` is kept, in rows of `widest`.
DEVICE u64 partial_of(u64 i, u64 start) { return 2 * (i / IDS_PER_PART) + (i == start); }

// A warp for each place of a partial sum.
KERNEL(embedding_backward_partials, Update, 128) {
  const u64 place = global_thread() / WARP, count = *(const u64 *)a.count;
  const u64 window = place / 2 * IDS_PER_PART;
  if (!LESS(window, count)) return;
  const u32 *starts = (const u32 *)a.starts;
  // The row of the window's last position has a first part there; that of its first position may
  // have a later part.
  const u64 last = LESS(window + IDS_PER_PART, count) ? window + IDS_PER_PART - 1 : count - 1;
  const u64 at = place % 2 ? last : window;
  const u64 row = ((const u32 *)a.indices)[at] + ((const u32 *)a.heads)[at] - 1;
  const u64 start = starts[row], end = starts[row + 1];
  if (end - start <= IDS_PER_PART) return;
  u64 first = start;
  if (place % 2 == 0) first = start + (window - start + IDS_PER_PART - 1) / IDS_PER_PART * IDS_PER_PART;
  if (first < window || first >= end || partial_of(first, start) != place) return;
  const u64 stop = LESS(first + IDS_PER_PART, end) ? first + IDS_PER_PART : end;
  const u32 dim = ((const Tile *)a.tiles)[tile_of(a, ((const u64 *)a.pairs)[start] >> a.payload_bits)].dim;
  for (u32 column = lane_of_thread(); LESS(column, dim); column += WARP)
    ((float *)a.partials)[place * a.widest + column] = sum_gradients(a, first, stop, column);
}

struct Updated {
  u64 tiles, pairs, indices, unique, count;
  u64 first_bad, stop;
  u64 updated;  // u64 [3]: rows, Σ of their D, bytes of their weights
  u32 tile_count, payload_bits;
};

// Distinct rows before `row`, counted over all tiles.
DEVICE u64 rows_before(const Updated &a, u64 row) {
  const u64 count = *(const u64 *)a.count;
  u64 low = 0, high = count;
  while (low < high) {
    const u64 middle = (low + high) / 2;
    if (((const u64 *)a.pairs)[middle] >> a.payload_bits < row) low = middle + 1; else high = middle;
  }
  return LESS(low, count) ? ((const u32 *)a.indices)[low] : *(const u32 *)a.unique;
}

// Whole numbers: the order of the additions does not matter.
KERNEL(embedding_backward_updated, Updated, 256) {
  const u64 i = global_thread();
  if (!LESS(i, a.tile_count)) return;
  if (*(const u64 *)a.first_bad != NO_BAD || *(const u32 *)a.stop) return;
  const Tile tile = ((const Tile *)a.tiles)[i];
  const u64 rows = rows_before(a, tile.first_row + tile.rows) - rows_before(a, tile.first_row);
  const u64 elements = rows * tile.dim, bytes = elements * (tile.format == FORMAT_F32 ? 4 : 2);
  atomicAdd((u64 *)a.updated, rows);
  atomicAdd((u64 *)a.updated + 1, elements);
  atomicAdd((u64 *)a.updated + 2, bytes);
}

// A warp for each row. Column d belongs to lane d modulo 32, which alone writes it.
KERNEL(embedding_backward_update, Update, 128) {
  DYNAMIC_SHARED(float, shared);
  const u64 unique_row = global_thread() / WARP;
  if (!LESS(unique_row, *(const u32 *)a.unique)) return;
  if (*(const u64 *)a.first_bad != NO_BAD || *(const u32 *)a.stop) return;
  const u32 lane = lane_of_thread();
  const u64 start = ((const u32 *)a.starts)[unique_row], end = ((const u32 *)a.starts)[unique_row + 1];
  const u64 counted_row = ((const u64 *)a.pairs)[start] >> a.payload_bits;
  const Tile tile = ((const Tile *)a.tiles)[tile_of(a, counted_row)];
  const Rule rule = *(const Rule *)a.rule;
  const u64 row = counted_row - tile.first_row, weights = row * tile.dim;
  float *sums = shared + warp_of_thread() * a.widest;
  for (u32 d = lane; LESS(d, tile.dim); d += WARP) {
    float sum = 0.0f;
    if (end - start <= IDS_PER_PART)
      sum = sum_gradients(a, start, end, d);
    else
      for (u64 i = start; i < end; i += IDS_PER_PART)
        sum += ((const float *)a.partials)[partial_of(i, start) * a.widest + d];
    sums[d] = sum;
  }
  const u64 key = random_bits(random_child(rule.rounding, tile.table), tile.origin_row + row);
  float *state = (float *)tile.state, squares = 0.0f, factor = 0.0f, shrink = 0.0f, ratio = 1.0f;
  if (rule.kind == ROWWISE_ADAGRAD) {
    __syncwarp();
    for (u32 d = lane; lane < 16 && LESS(d, tile.dim); d += 16) {
      const float value = sums[d] + rule.l2 * stored(tile.weights, tile.format, weights + d);
      squares += value * value;
    }
    float mean = lane == 0 ? state[row] : 0.0f;
    mean += total_of_parts(squares) / (float)tile.dim;
    if (lane == 0) state[row] = mean;
    mean = __shfl_sync(ALL_LANES, mean, 0);
    factor = rule.learning_rate / (sqrtf(mean) + rule.epsilon);
    shrink = shrink_of(rule) - factor * rule.l2;
    // Every weight has been read.
    __syncwarp();
  } else if (rule.kind == LAMB) {
    float weight_squares = 0.0f;
    for (u32 d = lane; LESS(d, tile.dim); d += WARP) {
      const float weight = stored(tile.weights, tile.format, weights + d);
      float *mean = state + 2 * weights + d, *square = mean + tile.dim;
      update_moments(rule, sums[d] + rule.l2 * weight, mean, square);
      sums[d] = corrected(rule, *mean, *square) + rule.decoupled * weight;
    }
    __syncwarp();
    for (u32 d = lane; lane < 16 && LESS(d, tile.dim); d += 16) {
      const float weight = stored(tile.weights, tile.format, weights + d);
      weight_squares += weight * weight;
      squares += sums[d] * sums[d];
    }
    weight_squares = total_of_parts(weight_squares);
    squares = total_of_parts(squares);
    if (weight_squares > 0.0f && squares > 0.0f) ratio = sqrtf(weight_squares) / sqrtf(squares);
    __syncwarp();
  }
  for (u32 d = lane; LESS(d, tile.dim); d += WARP) {
    const float weight = stored(tile.weights, tile.format, weights + d);
    float next;
    if (rule.kind == ROWWISE_ADAGRAD) {
      next = shrink * weight - factor * sums[d];
    } else if (rule.kind == LAMB) {
      next = weight - rule.learning_rate * ratio * sums[d];
    } else {
      const u64 first = rule.kind == ADAM ? 2 * weights + d : weights + d;
      next = updated(rule, weight, sums[d], state + first, state + first + tile.dim);
    }
    store_rounded(tile.weights, tile.format, weights + d, next, noise_of(key, tile.column + d));
  }
}
