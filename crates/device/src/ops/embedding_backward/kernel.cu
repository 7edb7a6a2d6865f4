// Sorts the gradients of lookups by row, sums them, and applies the update rule to each row in
// the same pass. The results are bit-identical to those of `scalar.rs`: no float is added by an
// atomic, so the order of every sum is that of the oracle.
//
//    pairs     for every position i, in parallel:  pair_i = row of id_i « bits | place of gradient
//    sort      stable, by row: digits of 8 bits, lowest first: count, scan, scatter
//    heads     head_i = row_i ≠ row_(i−1);  u_i = Σ_(j<i) head_j (a scan);  start_(u_i) = i
//    partials  rows of more than 512 ids: sum each part of 512 ids, in order
//    updated   for every tile, in parallel: distinct rows = heads before its end − before its start
//    update    for every row, in parallel: sum = Σ gradients (or Σ partials); apply the rule
//
// Where ranks exchange something between the sums and the rule, the last kernel is one of `sums`,
// `terms` and `finish`, which carry out a part of `update`.
//
// 1. A pair holds the row and the place of its gradient in 64 bits, so that the sort moves only
//   one array.
// 2. Each partial sum has a fixed place, so no scan is needed. In any window of 512 positions, at
//   most two rows with more than 512 ids meet, and at most one part of each begins there: a later
//   part of the first row, and the first part of the second.
// 3. No block waits for another block. A step that needs the results of all blocks is a launch of
//   its own.
// 4. A lane sums four columns at once, so a row of up to 128 columns reads its pairs only once.
// 5. The gradients of four ids are read before the first of them is added. If all of them are
//   aligned, each load reads 16 bytes. Four loads are then in flight (`loads_in_flight` of
//   kernels.tsv).
// 6. The source of the sum (gradients, gradients with factors, or partial sums) is a template
//   argument that is chosen once per row. The number format and the rule are not, because a
//   template for each format made the code 40 % longer, and their branches stand outside the
//   loads of four columns.

#define NO_BAD 0xffffffffffffffffull
#define IDS_PER_PART 512u

// Place of a position's gradient, and the factor of its id.
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
  // Finds the last bag that begins at or before the position. An empty bag that begins there too
  // is passed over, because it comes earlier.
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

// Arguments of one pass of the sort. Each block sorts a tile of 2048 pairs.
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

// Returns the sum of the values of all earlier threads in a block of `SORT_WARPS` warps.
DEVICE u32 sum_before(u32 value, u32 *totals) {
  const u32 lane = lane_of_thread();
  u32 sum = value;
  for (u32 distance = 1; distance < WARP; distance *= 2) {
    const u32 other = __shfl_up_sync(ALL_LANES, sum, distance);
    if (lane >= distance) sum += other;
  }
  if (lane == WARP - 1) totals[warp_of_thread()] = sum;
  __syncthreads();
  for (u32 w = 0; w < warp_of_thread(); ++w) sum += totals[w];
  return sum - value;
}

KERNEL(sort_scatter, Sort, DIGITS) {
  __shared__ u32 counted[SORT_WARPS][DIGITS], offsets[DIGITS], totals[SORT_WARPS];
  __shared__ u64 ordered[PAIRS_PER_TILE];
  const u64 count = *(const u64 *)a.count;
  const u32 lane = lane_of_thread(), warp = warp_of_thread();
  const u64 first = (u64)blockIdx.x * PAIRS_PER_TILE + warp * (ROUNDS * WARP);
  u64 pairs[ROUNDS];
  u32 ranks[ROUNDS];
  for (u32 w = 0; w < SORT_WARPS; ++w) counted[w][threadIdx.x] = 0;
  __syncthreads();
  // All loads are in flight before the first pair is ranked.
  for (u32 round = 0; round < ROUNDS; ++round) {
    const u64 i = first + round * WARP + lane;
    pairs[round] = LESS(i, count) ? ((const u64 *)a.from)[i] : 0;
  }
  // A warp ranks its pairs in order. The rank of a pair counts the earlier pairs of the warp with
  // the same digit.
  for (u32 round = 0; round < ROUNDS; ++round) {
    const bool there = LESS(first + round * WARP + lane, count);
    const u32 digit = there ? (u32)(pairs[round] >> a.shift) % DIGITS : DIGITS;
    const u32 peers = __match_any_sync(ALL_LANES, digit);
    const u32 before = there ? counted[warp][digit] : 0;
    ranks[round] = before + __popc(peers & ((1u << lane) - 1));
    __syncwarp();
    if (there && lane == (u32)__ffs((int)peers) - 1) counted[warp][digit] = before + __popc(peers);
    __syncwarp();
  }
  __syncthreads();
  // Thread d finds the first place of the pairs of digit d, first within the block and then for
  // each warp in turn.
  u32 total = 0;
  for (u32 w = 0; w < SORT_WARPS; ++w) total += counted[w][threadIdx.x];
  u32 before = sum_before(total, totals);
  offsets[threadIdx.x] = ((const u32 *)a.counts)[threadIdx.x * a.tiles + blockIdx.x] - before;
  for (u32 w = 0; w < SORT_WARPS; ++w) {
    const u32 own = counted[w][threadIdx.x];
    counted[w][threadIdx.x] = before;
    before += own;
  }
  __syncthreads();
  for (u32 round = 0; round < ROUNDS; ++round) {
    if (!LESS(first + round * WARP + lane, count)) continue;
    const u32 digit = (u32)(pairs[round] >> a.shift) % DIGITS;
    ordered[counted[warp][digit] + ranks[round]] = pairs[round];
  }
  __syncthreads();
  // Pairs of one digit are neighbors in shared memory, so the writes of a warp touch few cache
  // lines.
  const u64 begin = (u64)blockIdx.x * PAIRS_PER_TILE;
  for (u32 i = threadIdx.x; i < PAIRS_PER_TILE && LESS(begin + i, count); i += DIGITS) {
    const u64 pair = ordered[i];
    ((u64 *)a.to)[offsets[(u32)(pair >> a.shift) % DIGITS] + i] = pair;
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
  u64 rows;  // f32 by distinct row: sums [rows, widest] or terms [rows, 2], otherwise 0
  u32 tile_count, payload_bits, widest, padding;
};

// Returns the tile of a row, whose number counts the rows of all tiles.
DEVICE u32 tile_of(const Update &a, u64 row) {
  u32 low = 0, high = a.tile_count;
  while (high - low > 1) {
    const u32 middle = (low + high) / 2;
    if (((const Tile *)a.tiles)[middle].first_row <= row) low = middle; else high = middle;
  }
  return low;
}

// Returns the place of the partial sum of the part that begins at `i`. Each place has `widest`
// values.
DEVICE u64 partial_of(u32 i, u32 start) { return 2 * (i / IDS_PER_PART) + (i == start); }

// Source of the vectors that `sum_vectors` adds: gradients whose places the pairs hold, gradients
// whose places and factors the sources hold, or the partial sums of a row.
#define GRADIENTS 0u
#define SCALED_GRADIENTS 1u
#define PARTIAL_SUMS 2u
#define VECTORS_IN_FLIGHT 4u
#define COLUMNS 4u
#define ROWS_PER_WARP 8u

// Reads `COLUMNS` columns of a vector from `column` on. Beyond the end of the vector, it reads
// the first of these columns again.
DEVICE void read_vector(const float *vector, u32 column, u32 dim, float *values) {
  if (((u64)vector / 4 | dim) % COLUMNS == 0) {
    const float4 four = __ldg((const float4 *)(vector + column));
    values[0] = four.x, values[1] = four.y, values[2] = four.z, values[3] = four.w;
  } else {
    for (u32 c = 0; c < COLUMNS; ++c)
      values[c] = __ldg(vector + (LESS(column + c, dim) ? column + c : column));
  }
}

// Adds the vectors of `COUNT` sorted positions from `i` on, in order, to the sums of the columns
// from `column` on. All loads are in flight before the first vector is added.
template <u32 WHAT, u32 COUNT>
DEVICE void add_vectors(const Update &a, u32 start, u32 i, u32 column, u32 dim, float *sums) {
  const u64 mask = (1ull << a.payload_bits) - 1;
  const float *vectors[COUNT];
  float factors[COUNT], values[COUNT][COLUMNS];
  bool are_aligned = dim % COLUMNS == 0;
  for (u32 k = 0; k < COUNT; ++k) {
    if (WHAT == PARTIAL_SUMS) {
      vectors[k] = (const float *)a.partials + partial_of(i + k * IDS_PER_PART, start) * a.widest;
    } else {
      u64 place = __ldg((const u64 *)a.pairs + i + k) & mask;
      if (WHAT == SCALED_GRADIENTS) {
        const Source *source = (const Source *)a.sources + place;
        place = __ldg(&source->place), factors[k] = __ldg(&source->factor);
      }
      vectors[k] = (const float *)a.gradient + place;
    }
    are_aligned = are_aligned && (u64)vectors[k] % 16 == 0;
  }
  if (are_aligned && COUNT > 1) {
    for (u32 k = 0; k < COUNT; ++k) {
      const float4 four = __ldg((const float4 *)(vectors[k] + column));  // in flight
      values[k][0] = four.x, values[k][1] = four.y, values[k][2] = four.z, values[k][3] = four.w;
    }
  } else {
    for (u32 k = 0; k < COUNT; ++k) read_vector(vectors[k], column, dim, values[k]);
  }
  for (u32 k = 0; k < COUNT; ++k)
    for (u32 c = 0; c < COLUMNS; ++c)
      sums[c] += WHAT == SCALED_GRADIENTS ? factors[k] * values[k][c] : values[k][c];
}

// Sums the vectors of the sorted positions `start..end`, in order, in the columns from `column`
// on.
template <u32 WHAT>
DEVICE void sum_vectors(const Update &a, u32 start, u32 end, u32 column, u32 dim, float *sums) {
  const u32 step = WHAT == PARTIAL_SUMS ? IDS_PER_PART : 1;
  for (u32 c = 0; c < COLUMNS; ++c) sums[c] = 0.0f;
  u32 i = start;
  for (; i + (VECTORS_IN_FLIGHT - 1) * step < end; i += VECTORS_IN_FLIGHT * step)
    add_vectors<WHAT, VECTORS_IN_FLIGHT>(a, start, i, column, dim, sums);
  for (; i < end; i += step) add_vectors<WHAT, 1>(a, start, i, column, dim, sums);
}

// Sums the vectors into `out`. A lane computes four columns from column 4 · lane on.
template <u32 WHAT>
DEVICE void write_sums(const Update &a, u32 start, u32 end, u32 dim, float *out) {
  for (u32 column = COLUMNS * lane_of_thread(); LESS(column, dim); column += COLUMNS * WARP) {
    float sums[COLUMNS];
    sum_vectors<WHAT>(a, start, end, column, dim, sums);
    for (u32 c = 0; c < COLUMNS; ++c)
      if (LESS(column + c, dim)) out[column + c] = sums[c];
  }
}

// Computes the partial sums. Each warp serves one place of a partial sum.
KERNEL(embedding_backward_partials, Update, 128) {
  const u64 place = global_thread() / WARP, count = *(const u64 *)a.count;
  const u64 window = place / 2 * IDS_PER_PART;
  if (!LESS(window, count)) return;
  const u32 *starts = (const u32 *)a.starts;
  // The row of the window's last position may have its first part in this window, and the row of
  // the window's first position may have a later part in it.
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

// Returns the number of distinct rows before `row`, whose number counts the rows of all tiles.
// The lanes of a warp search together, and each iteration leaves one thirty-second of the range.
DEVICE u64 rows_before(const Updated &a, u64 row) {
  const u64 count = *(const u64 *)a.count;
  u64 low = 0, high = count;
  while (low < high) {
    const u64 step = (high - low + WARP - 1) / WARP, at = low + lane_of_thread() * step;
    const bool is_before = LESS(at, high) && ((const u64 *)a.pairs)[at] >> a.payload_bits < row;
    const u32 before = __popc(__ballot_sync(ALL_LANES, is_before));
    if (LESS(before * step, high - low)) high = low + before * step;
    if (before) low += (before - 1) * step + 1;
  }
  return LESS(low, count) ? ((const u32 *)a.indices)[low] : *(const u32 *)a.unique;
}

// Counts the updated rows, with a warp for each tile. The counts are integers, so the order of
// the additions does not matter.
KERNEL(embedding_backward_updated, Updated, 256) {
  const u64 i = global_thread() / WARP;
  if (!LESS(i, a.tile_count)) return;
  if (*(const u64 *)a.first_bad != NO_BAD || *(const u32 *)a.stop) return;
  const Tile tile = ((const Tile *)a.tiles)[i];
  const u64 rows = rows_before(a, tile.first_row + tile.rows) - rows_before(a, tile.first_row);
  if (lane_of_thread() != 0) return;
  const u64 elements = rows * tile.dim, bytes = elements * (tile.format == FORMAT_F32 ? 4 : 2);
  atomicAdd((u64 *)a.updated, rows);
  atomicAdd((u64 *)a.updated + 1, elements);
  atomicAdd((u64 *)a.updated + 2, bytes);
}

// A row to update: its addresses, and the range of its sorted positions.
struct Row {
  u64 weights, state;  // addresses of this row's weights and state
  u64 key;             // key of the row's random bits
  u32 begin, end;      // range of sorted positions
  u32 dim, format, column;
  u32 is_aligned;      // whether four columns are read and written at once
};

// Finds the row with the number `unique_row` among the distinct rows of the batch.
DEVICE Row find_row(const Update &a, const Rule &rule, u32 states, u64 unique_row) {
  Row found;
  found.begin = ((const u32 *)a.starts)[unique_row];
  found.end = ((const u32 *)a.starts)[unique_row + 1];
  const u64 counted_row = ((const u64 *)a.pairs)[found.begin] >> a.payload_bits;
  const Tile tile = ((const Tile *)a.tiles)[tile_of(a, counted_row)];
  const u64 row = counted_row - tile.first_row, start = row * tile.dim;
  found.weights = tile.weights + start * (tile.format == FORMAT_F32 ? 4 : 2);
  found.state = tile.state + 4 * (rule.kind == ROWWISE_ADAGRAD ? row : states * start);
  found.key = random_bits(random_child(rule.rounding, tile.table), tile.origin_row + row);
  found.dim = tile.dim, found.format = tile.format, found.column = tile.column;
  found.is_aligned = (tile.weights | tile.state | tile.dim * 4) % 16 == 0;
  return found;
}

// Copies the row of one lane to all lanes.
DEVICE Row broadcast(const Row &row, u32 lane) {
  Row copy;
  copy.weights = __shfl_sync(ALL_LANES, row.weights, lane);
  copy.state = __shfl_sync(ALL_LANES, row.state, lane);
  copy.key = __shfl_sync(ALL_LANES, row.key, lane);
  copy.begin = __shfl_sync(ALL_LANES, row.begin, lane);
  copy.end = __shfl_sync(ALL_LANES, row.end, lane);
  copy.dim = __shfl_sync(ALL_LANES, row.dim, lane);
  copy.format = __shfl_sync(ALL_LANES, row.format, lane);
  copy.column = __shfl_sync(ALL_LANES, row.column, lane);
  copy.is_aligned = __shfl_sync(ALL_LANES, row.is_aligned, lane);
  return copy;
}

// Reads `COLUMNS` words of a row, from `column` on.
DEVICE void read_words(u64 words, const Row &row, u32 column, u32 *read) {
  const u32 *from = (const u32 *)words + column;
  if (row.is_aligned) {
    const uint4 four = *(const uint4 *)from;
    read[0] = four.x, read[1] = four.y, read[2] = four.z, read[3] = four.w;
  } else {
    for (u32 c = 0; c < COLUMNS; ++c) read[c] = LESS(column + c, row.dim) ? from[c] : 0;
  }
}

DEVICE void write_words(u64 words, const Row &row, u32 column, const u32 *written) {
  u32 *to = (u32 *)words + column;
  if (row.is_aligned) {
    *(uint4 *)to = uint4{written[0], written[1], written[2], written[3]};
  } else {
    for (u32 c = 0; c < COLUMNS; ++c)
      if (LESS(column + c, row.dim)) to[c] = written[c];
  }
}

// Reads `COLUMNS` weights of a row, from `column` on.
DEVICE void read_weights(const Row &row, u32 column, float *weights) {
  u32 kept[COLUMNS];
  if (row.format == FORMAT_F32) {
    read_words(row.weights, row, column, kept);
    for (u32 c = 0; c < COLUMNS; ++c) weights[c] = f32_of_bits(kept[c]);
    return;
  }
  const u16 *from = (const u16 *)row.weights + column;
  if (row.is_aligned) {
    const uint2 four = *(const uint2 *)from;
    kept[0] = four.x & 0xffff, kept[1] = four.x >> 16;
    kept[2] = four.y & 0xffff, kept[3] = four.y >> 16;
  } else {
    for (u32 c = 0; c < COLUMNS; ++c) kept[c] = LESS(column + c, row.dim) ? from[c] : 0;
  }
  if (row.format == FORMAT_F16) {
    for (u32 c = 0; c < COLUMNS; ++c) weights[c] = number_of(kept[c], FORMAT_F16);
  } else {
    for (u32 c = 0; c < COLUMNS; ++c) weights[c] = number_of(kept[c], FORMAT_BF16);
  }
}

// Writes `COLUMNS` weights of a row, from `column` on. 16-bit weights are rounded stochastically.
DEVICE void write_weights(const Row &row, u32 column, const float *weights) {
  u32 kept[COLUMNS];
  if (row.format == FORMAT_F32) {
    for (u32 c = 0; c < COLUMNS; ++c) kept[c] = bits_of(weights[c]);
    write_words(row.weights, row, column, kept);
    return;
  }
  u32 noise[COLUMNS];
  for (u32 c = 0; c < COLUMNS; ++c) noise[c] = noise_of(row.key, row.column + column + c);
  if (row.format == FORMAT_F16) {
    for (u32 c = 0; c < COLUMNS; ++c) kept[c] = rounded_to_f16(weights[c], noise[c]);
  } else {
    for (u32 c = 0; c < COLUMNS; ++c) kept[c] = rounded_to_bf16(weights[c], noise[c]);
  }
  u16 *to = (u16 *)row.weights + column;
  if (row.is_aligned) {
    *(uint2 *)to = uint2{kept[0] | kept[1] << 16, kept[2] | kept[3] << 16};
  } else {
    for (u32 c = 0; c < COLUMNS; ++c)
      if (LESS(column + c, row.dim)) to[c] = (u16)kept[c];
  }
}

// Returns Σ value² of a row of values in shared memory, in all lanes.
DEVICE float total_of_squares(const float *values, u32 dim) {
  float squares = 0.0f;
  if (lane_of_thread() < 16)
#pragma unroll 4
    for (u32 d = lane_of_thread(); LESS(d, dim); d += 16) squares += values[d] * values[d];
  return total_of_parts(squares);
}

// Applies a rule to four columns of a row whose gradients are summed. A rule whose step depends
// on the whole row stores two vectors in shared memory for `finish_row`: the vector that it
// subtracts, and the terms whose squares are summed.
template <u32 KIND>
DEVICE void apply(const Rule &given, const Row &row, u32 column, float *sums, float *weights,
                  float *vector, float *terms) {
  const u32 STATES = KIND == ADAGRAD ? 1 : KIND == ADAM || KIND == LAMB ? 2 : 0;
  const bool IS_STAGED = KIND == ROWWISE_ADAGRAD || KIND == LAMB;
  const u64 second_state = row.state + 4 * row.dim;
  u32 one[COLUMNS] = {}, two[COLUMNS] = {};
  Rule rule = given;
  rule.kind = KIND;
  if (STATES >= 1) read_words(row.state, row, column, one);
  if (STATES == 2) read_words(second_state, row, column, two);
  for (u32 c = 0; c < COLUMNS; ++c) {
    float moment = f32_of_bits(one[c]), square = f32_of_bits(two[c]);
    float term = weights[c];
    if (KIND == ROWWISE_ADAGRAD) {
      term = sums[c] + rule.l2 * weights[c];
    } else if (KIND == LAMB) {
      update_moments(rule, sums[c] + rule.l2 * weights[c], &moment, &square);
      sums[c] = corrected(rule, moment, square) + rule.decoupled * weights[c];
    } else {
      weights[c] = updated(rule, weights[c], sums[c], &moment, &square);
    }
    one[c] = bits_of(moment), two[c] = bits_of(square);
    if (IS_STAGED && LESS(column + c, row.dim)) vector[column + c] = sums[c], terms[column + c] = term;
  }
  if (STATES >= 1) write_words(row.state, row, column, one);
  if (STATES == 2) write_words(second_state, row, column, two);
  if (!IS_STAGED) write_weights(row, column, weights);
}

// Returns whether the step of a weight depends on its whole row.
DEVICE bool looks_at_rows(const Rule &rule) {
  return rule.kind == ROWWISE_ADAGRAD || rule.kind == LAMB;
}

// Computes the two sums that a rule needs of the whole row, in all lanes.
DEVICE void terms_of_row(const Rule &rule, const Row &row, const float *vector, const float *terms,
                         float *sums) {
  // The columns that a lane wrote are read by other lanes below.
  __syncwarp();
  sums[0] = total_of_squares(terms, row.dim);
  sums[1] = rule.kind == LAMB ? total_of_squares(vector, row.dim) : (float)row.dim;
}

// Writes the direction of LAMB to `vector`, from moments that are already updated.
DEVICE void stage_direction(const Rule &rule, const Row &row, u32 column, const float *weights,
                            float *vector) {
  u32 one[COLUMNS], two[COLUMNS];
  read_words(row.state, row, column, one);
  read_words(row.state + 4 * row.dim, row, column, two);
  for (u32 c = 0; c < COLUMNS; ++c)
    if (LESS(column + c, row.dim))
      vector[column + c] = corrected(rule, f32_of_bits(one[c]), f32_of_bits(two[c])) +
                           rule.decoupled * weights[c];
}

// Applies the remaining part of a rule whose step depends on the whole row.
DEVICE void finish_row(const Rule &rule, const Row &row, const float *vector, const float *sums) {
  const float squares = sums[0];
  float shrink = 1.0f, factor;
  if (rule.kind == ROWWISE_ADAGRAD) {
    const float mean = *(const float *)row.state + squares / sums[1];
    __syncwarp();
    if (lane_of_thread() == 0) *(float *)row.state = mean;
    factor = rule.learning_rate / (sqrtf(mean) + rule.epsilon);
    shrink = shrink_of(rule) - factor * rule.l2;
  } else {
    const float step_squares = sums[1];
    const bool has_ratio = squares > 0.0f && step_squares > 0.0f;
    factor = rule.learning_rate * (has_ratio ? sqrtf(squares) / sqrtf(step_squares) : 1.0f);
  }
  for (u32 column = COLUMNS * lane_of_thread(); LESS(column, row.dim); column += COLUMNS * WARP) {
    float weights[COLUMNS];
    read_weights(row, column, weights);
    for (u32 c = 0; c < COLUMNS; ++c) {
      const float step = LESS(column + c, row.dim) ? vector[column + c] : 0.0f;
      weights[c] = shrink * weights[c] - factor * step;
    }
    write_weights(row, column, weights);
  }
  // All lanes have read this row before the next row of the warp overwrites it.
  __syncwarp();
}

// The part of an update that a kernel carries out.
#define WHOLE 0u
#define SUMS 1u
#define TERMS 2u
#define FINISH 3u

template <u32 PART>
DEVICE void update_row(const Update &a, const Rule &rule, const Row &row, u64 number,
                       float *vector) {
  float *terms = vector + a.widest, *rows = (float *)a.rows;
  if (PART == SUMS) {
    float *out = rows + number * a.widest;
    if (row.end - row.begin > IDS_PER_PART)
      write_sums<PARTIAL_SUMS>(a, row.begin, row.end, row.dim, out);
    else if (a.sources)
      write_sums<SCALED_GRADIENTS>(a, row.begin, row.end, row.dim, out);
    else
      write_sums<GRADIENTS>(a, row.begin, row.end, row.dim, out);
    return;
  }
  for (u32 column = COLUMNS * lane_of_thread(); LESS(column, row.dim); column += COLUMNS * WARP) {
    float sums[COLUMNS], weights[COLUMNS];
    read_weights(row, column, weights);
    if (PART == FINISH && rule.kind == LAMB) {
      stage_direction(rule, row, column, weights, vector);
      continue;
    }
    if (row.end - row.begin > IDS_PER_PART)
      sum_vectors<PARTIAL_SUMS>(a, row.begin, row.end, column, row.dim, sums);
    else if (a.sources)
      sum_vectors<SCALED_GRADIENTS>(a, row.begin, row.end, column, row.dim, sums);
    else
      sum_vectors<GRADIENTS>(a, row.begin, row.end, column, row.dim, sums);
    switch (rule.kind) {
      case SGD: apply<SGD>(rule, row, column, sums, weights, vector, terms); break;
      case ADAGRAD: apply<ADAGRAD>(rule, row, column, sums, weights, vector, terms); break;
      case ADAM: apply<ADAM>(rule, row, column, sums, weights, vector, terms); break;
      case LAMB: apply<LAMB>(rule, row, column, sums, weights, vector, terms); break;
      default: apply<ROWWISE_ADAGRAD>(rule, row, column, sums, weights, vector, terms);
    }
  }
  if (!looks_at_rows(rule)) return;
  float sums[2];
  if (PART == FINISH) sums[0] = rows[2 * number], sums[1] = rows[2 * number + 1];
  else terms_of_row(rule, row, vector, terms, sums);
  if (PART == TERMS) {
    if (lane_of_thread() == 0) rows[2 * number] = sums[0], rows[2 * number + 1] = sums[1];
    // All lanes have read this row before the next row of the warp overwrites it.
    __syncwarp();
  } else {
    finish_row(rule, row, vector, sums);
  }
}

// Updates the rows, with a warp for every `ROWS_PER_WARP` rows. Its lanes find the rows in
// parallel and prefetch their memory. Then all lanes update one row after the other.
template <u32 PART>
DEVICE void update_rows(const Update &a, float *shared) {
  const u64 first = global_thread() / WARP * ROWS_PER_WARP, unique = *(const u32 *)a.unique;
  if (!LESS(first, unique)) return;
  if (*(const u64 *)a.first_bad != NO_BAD || (PART != SUMS && *(const u32 *)a.stop)) return;
  const Rule rule = *(const Rule *)a.rule;
  if (PART == TERMS && !looks_at_rows(rule)) return;
  const u32 states = rule.kind == ADAGRAD ? 1 : rule.kind == ADAM || rule.kind == LAMB ? 2 : 0;
  const u32 rows = LESS(first + ROWS_PER_WARP, unique) ? ROWS_PER_WARP : (u32)(unique - first);
  const u32 turn = lane_of_thread() % ROWS_PER_WARP, lines = WARP / ROWS_PER_WARP;
  const Row found = find_row(a, rule, states, first + (LESS(turn, rows) ? turn : 0));
  const u32 line = lane_of_thread() / ROWS_PER_WARP * LINE_BYTES;
  const u32 bytes = found.dim * (found.format == FORMAT_F32 ? 4 : 2);
  for (u32 at = line; at < bytes; at += lines * LINE_BYTES) prefetch_line(found.weights + at);
  for (u32 at = line; at < states * found.dim * 4; at += lines * LINE_BYTES)
    prefetch_line(found.state + at);
  for (u32 i = 0; i < rows; ++i)
    update_row<PART>(a, rule, broadcast(found, i), first + i,
                     shared + 2 * warp_of_thread() * a.widest);
}

KERNEL(embedding_backward_update, Update, 128) {
  DYNAMIC_SHARED(float, shared);
  update_rows<WHOLE>(a, shared);
}

// Writes the summed gradient of each row, and changes no row.
KERNEL(embedding_backward_sums, Update, 128) {
  DYNAMIC_SHARED(float, shared);
  update_rows<SUMS>(a, shared);
}

// Writes what the rule needs of each row. LAMB also updates its moments.
KERNEL(embedding_backward_terms, Update, 128) {
  DYNAMIC_SHARED(float, shared);
  update_rows<TERMS>(a, shared);
}

// Updates each row with the terms of the whole row, of which it may be a part.
KERNEL(embedding_backward_finish, Update, 128) {
  DYNAMIC_SHARED(float, shared);
  update_rows<FINISH>(a, shared);
}
