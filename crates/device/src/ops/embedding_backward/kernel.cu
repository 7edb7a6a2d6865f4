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
// 4. A lane sums four columns at once, so that up to 128 columns read the pairs once.
// 5. The gradients of four ids are read before the first is added, 16 bytes at a time where all of
//    them are aligned: four loads in flight, by `loads_in_flight` of kernels.tsv.
// 6. What is summed (gradients, gradients with factors, partial sums) is chosen once per row. The
//    format and the rule are not: a template for each format made the code 40 % longer, and their
//    branches stand outside the loads of four columns.

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

// Where the partial sum of the part that begins at `i` is kept, in rows of `widest`.
DEVICE u64 partial_of(u32 i, u32 start) { return 2 * (i / IDS_PER_PART) + (i == start); }

// What `sum_vectors` adds: gradients whose places the pairs hold, those whose places and factors
// the sources hold, or the partial sums of a row.
#define GRADIENTS 0u
#define SCALED_GRADIENTS 1u
#define PARTIAL_SUMS 2u
#define VECTORS_IN_FLIGHT 4u
#define COLUMNS 4u

// Reads `COLUMNS` columns of a vector from `column` on; behind the end of the vector the first of
// them again.
template <bool IS_ALIGNED>
DEVICE void read_vector(const float *vector, u32 column, u32 dim, float *values) {
  if (IS_ALIGNED) {
    const float4 four = __ldg((const float4 *)(vector + column));  // in flight
    values[0] = four.x, values[1] = four.y, values[2] = four.z, values[3] = four.w;
  } else {
    for (u32 c = 0; c < COLUMNS; ++c) {
      const u32 d = LESS(column + c, dim) ? column + c : column;
      values[c] = __ldg(vector + d);
    }
  }
}

// Σ of the vectors of the sorted positions `start..end`, in order, in the columns from `column` on.
template <u32 WHAT>
DEVICE void sum_vectors(const Update &a, u32 start, u32 end, u32 column, u32 dim, float *sums) {
  const u64 mask = (1ull << a.payload_bits) - 1;
  const u32 step = WHAT == PARTIAL_SUMS ? IDS_PER_PART : 1;
  const float *vectors = (const float *)(WHAT == PARTIAL_SUMS ? a.partials : a.gradient);
  for (u32 c = 0; c < COLUMNS; ++c) sums[c] = 0.0f;
  for (u32 i = start; i < end; i += VECTORS_IN_FLIGHT * step) {
    u64 places[VECTORS_IN_FLIGHT];
    float factors[VECTORS_IN_FLIGHT], values[VECTORS_IN_FLIGHT][COLUMNS] = {};
    for (u32 k = 0; k < VECTORS_IN_FLIGHT; ++k) {
      const u32 at = i + k * step;
      places[k] = 0;
      if (WHAT == PARTIAL_SUMS) places[k] = partial_of(at, start) * a.widest;
      else if (LESS(at, end)) places[k] = __ldg((const u64 *)a.pairs + at) & mask;
    }
    for (u32 k = 0; k < VECTORS_IN_FLIGHT && WHAT == SCALED_GRADIENTS; ++k) {
      const Source *source = (const Source *)a.sources + places[k];
      factors[k] = 0.0f;
      if (LESS(i + k, end)) places[k] = __ldg(&source->place), factors[k] = __ldg(&source->factor);
    }
    u64 all = (u64)vectors / 4 | dim;
    for (u32 k = 0; k < VECTORS_IN_FLIGHT; ++k) all |= places[k];
    if (all % 4 == 0) {
      for (u32 k = 0; k < VECTORS_IN_FLIGHT; ++k)
        if (LESS(i + k * step, end)) read_vector<true>(vectors + places[k], column, dim, values[k]);
    } else {
      for (u32 k = 0; k < VECTORS_IN_FLIGHT; ++k)
        if (LESS(i + k * step, end)) read_vector<false>(vectors + places[k], column, dim, values[k]);
    }
    // Behind the end 0 is added, which changes no sum: none is −0.
    for (u32 k = 0; k < VECTORS_IN_FLIGHT; ++k)
      for (u32 c = 0; c < COLUMNS; ++c)
        sums[c] += WHAT == SCALED_GRADIENTS ? factors[k] * values[k][c] : values[k][c];
  }
}

// Sums the vectors into `out`, whose columns from 4 · lane on are the lane's.
template <u32 WHAT>
DEVICE void write_sums(const Update &a, u32 start, u32 end, u32 dim, float *out) {
  for (u32 column = COLUMNS * lane_of_thread(); LESS(column, dim); column += COLUMNS * WARP) {
    float sums[COLUMNS];
    sum_vectors<WHAT>(a, start, end, column, dim, sums);
    for (u32 c = 0; c < COLUMNS; ++c)
      if (LESS(column + c, dim)) out[column + c] = sums[c];
  }
}

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
  const u32 start = starts[row], end = starts[row + 1];
  if (end - start <= IDS_PER_PART) return;
  u32 first = start;
  if (place % 2 == 0)
    first = start + ((u32)window - start + IDS_PER_PART - 1) / IDS_PER_PART * IDS_PER_PART;
  if (first < window || first >= end || partial_of(first, start) != place) return;
  const u32 stop = LESS(first + IDS_PER_PART, end) ? first + IDS_PER_PART : end;
  const u32 dim = ((const Tile *)a.tiles)[tile_of(a, ((const u64 *)a.pairs)[start] >> a.payload_bits)].dim;
  float *out = (float *)a.partials + place * a.widest;
  if (a.sources) write_sums<SCALED_GRADIENTS>(a, first, stop, dim, out);
  else write_sums<GRADIENTS>(a, first, stop, dim, out);
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

// Reads the weights of `COLUMNS` columns of a row, `step` apart. The row begins at element `start` of
// its tile.
DEVICE void read_weights(const Tile &tile, u64 start, u32 first, u32 step, float *weights) {
  u32 words[COLUMNS] = {};
  if (tile.format == FORMAT_F32) {
    for (u32 c = 0; c < COLUMNS; ++c) {
      const u32 d = first + c * step;
      if (LESS(d, tile.dim)) words[c] = ((const u32 *)tile.weights)[start + d];
    }
  } else {
    for (u32 c = 0; c < COLUMNS; ++c) {
      const u32 d = first + c * step;
      if (LESS(d, tile.dim)) words[c] = ((const u16 *)tile.weights)[start + d];
    }
  }
  for (u32 c = 0; c < COLUMNS; ++c) weights[c] = number_of(words[c], tile.format);
}

// Reads `states` values of the state of each of the columns, which are WARP apart.
DEVICE void read_state(const float *state, u32 dim, u32 first, u32 states, float *one, float *two) {
  for (u32 c = 0; c < COLUMNS; ++c) {
    const u32 d = first + c * WARP;
    if (states >= 1 && LESS(d, dim)) one[c] = state[d];
    if (states == 2 && LESS(d, dim)) two[c] = state[dim + d];
  }
}

// A warp for each row. Under the rule, column d belongs to lane d modulo 32, which alone writes it.
KERNEL(embedding_backward_update, Update, 128) {
  DYNAMIC_SHARED(float, shared);
  const u64 unique_row = global_thread() / WARP;
  if (!LESS(unique_row, *(const u32 *)a.unique)) return;
  if (*(const u64 *)a.first_bad != NO_BAD || *(const u32 *)a.stop) return;
  const u32 lane = lane_of_thread();
  const u32 begin = ((const u32 *)a.starts)[unique_row], end = ((const u32 *)a.starts)[unique_row + 1];
  const u64 counted_row = ((const u64 *)a.pairs)[begin] >> a.payload_bits;
  const Tile *tiles = (const Tile *)a.tiles + tile_of(a, counted_row);
  const u32 dim = tiles->dim;
  float *sums = shared + warp_of_thread() * a.widest;
  if (end - begin > IDS_PER_PART) write_sums<PARTIAL_SUMS>(a, begin, end, dim, sums);
  else if (a.sources) write_sums<SCALED_GRADIENTS>(a, begin, end, dim, sums);
  else write_sums<GRADIENTS>(a, begin, end, dim, sums);
  // The sums of a column are another lane's.
  __syncwarp();
  const Tile tile = *tiles;
  const Rule rule = *(const Rule *)a.rule;
  const u64 row = counted_row - tile.first_row, start = row * dim;
  const u32 states = rule.kind == ADAGRAD ? 1 : rule.kind == ADAM || rule.kind == LAMB ? 2 : 0;
  float *state = (float *)tile.state + states * start;
  float squares = 0.0f, factor = 0.0f, shrink = 0.0f, ratio = 1.0f;
  float weights[COLUMNS], one[COLUMNS] = {}, two[COLUMNS] = {};
  if (rule.kind == ROWWISE_ADAGRAD) {
    for (u32 first = lane; lane < 16 && LESS(first, dim); first += COLUMNS * 16) {
      read_weights(tile, start, first, 16, weights);
      for (u32 c = 0; c < COLUMNS; ++c) {
        const u32 d = first + c * 16;
        if (!LESS(d, dim)) continue;
        const float value = sums[d] + rule.l2 * weights[c];
        squares += value * value;
      }
    }
    float mean = lane == 0 ? state[row] : 0.0f;
    mean += total_of_parts(squares) / (float)dim;
    if (lane == 0) state[row] = mean;
    mean = __shfl_sync(ALL_LANES, mean, 0);
    factor = rule.learning_rate / (sqrtf(mean) + rule.epsilon);
    shrink = shrink_of(rule) - factor * rule.l2;
    // Every weight has been read.
    __syncwarp();
  } else if (rule.kind == LAMB) {
    float weight_squares = 0.0f;
    for (u32 first = lane; LESS(first, dim); first += COLUMNS * WARP) {
      read_weights(tile, start, first, WARP, weights);
      read_state(state, dim, first, states, one, two);
      for (u32 c = 0; c < COLUMNS; ++c) {
        const u32 d = first + c * WARP;
        if (!LESS(d, dim)) continue;
        update_moments(rule, sums[d] + rule.l2 * weights[c], &one[c], &two[c]);
        state[d] = one[c], state[dim + d] = two[c];
        sums[d] = corrected(rule, one[c], two[c]) + rule.decoupled * weights[c];
      }
    }
    __syncwarp();
    for (u32 first = lane; lane < 16 && LESS(first, dim); first += COLUMNS * 16) {
      read_weights(tile, start, first, 16, weights);
      for (u32 c = 0; c < COLUMNS; ++c) {
        const u32 d = first + c * 16;
        if (!LESS(d, dim)) continue;
        weight_squares += weights[c] * weights[c];
        squares += sums[d] * sums[d];
      }
    }
    weight_squares = total_of_parts(weight_squares);
    squares = total_of_parts(squares);
    if (weight_squares > 0.0f && squares > 0.0f) ratio = sqrtf(weight_squares) / sqrtf(squares);
    __syncwarp();
  }
  const u64 key = random_bits(random_child(rule.rounding, tile.table), tile.origin_row + row);
  for (u32 first = lane; LESS(first, dim); first += COLUMNS * WARP) {
    read_weights(tile, start, first, WARP, weights);
    if (rule.kind == ADAGRAD || rule.kind == ADAM) read_state(state, dim, first, states, one, two);
    for (u32 c = 0; c < COLUMNS; ++c) {
      const u32 d = first + c * WARP;
      if (!LESS(d, dim)) continue;
      float next;
      if (rule.kind == ROWWISE_ADAGRAD) {
        next = shrink * weights[c] - factor * sums[d];
      } else if (rule.kind == LAMB) {
        next = weights[c] - rule.learning_rate * ratio * sums[d];
      } else {
        next = updated(rule, weights[c], sums[d], &one[c], &two[c]);
        if (states >= 1) state[d] = one[c];
        if (states == 2) state[dim + d] = two[c];
      }
      store_rounded(tile.weights, tile.format, start + d, next, noise_of(key, tile.column + d));
    }
  }
}
