// Lookup of all tables in one launch, pooled or not. The results are bit-identical to
// `scalar.rs`.
//
//   for every bag (k, b), in parallel:
//     for every column d, in parallel:
//       sum = 0
//       for j in bag, in order:  sum += weight_j · table[ids_j, d]
//       out[place(k, b) + d] = scale · sum          (a sequence: one row per j, not summed)
//
// 1. `lanes` threads share a bag, as many as the widest row can use. With D = 4, a warp has 8
//   bags.
// 2. The format of the table and the way to read its rows are chosen once per bag. A branch per
//   element would keep only one load in flight.
// 3. A thread reads its columns of four ids before it adds the first of them, so four loads are
//   in flight (`loads_in_flight` of kernels.tsv).
// 4. Rows that consist of whole, aligned groups of 16 bytes are read and written 16 bytes at a
//   time: four f32 or eight halves in one load. Other rows are read element by element.
// 5. Bags and positions are counted in 32 bits, which the launch checks. The kernel then uses 64
//   registers and spills none.
// A bag with an out-of-range id reports the id's position, and its output is unspecified.

struct EmbeddingForward {
  u64 tiles, slots, ids, offsets;
  u64 weights, scales;  // 0 where every one is 1
  u64 out, first_bad;
  u32 features, batch, lanes, is_wide;
};

#define IDS_IN_FLIGHT 4u
#define BYTES_OF(format) ((format) == FORMAT_F32 ? 4u : 2u)
// The value that `read_ids` returns beyond the end of a bag. It is not a row of any table.
#define NO_ID 0xffffffffffffffffull

// Reads `IDS_IN_FLIGHT` ids from `first` on, as far as they lie before `end`.
DEVICE void read_ids(const EmbeddingForward &a, u32 first, u32 end, u64 *ids) {
  if (a.is_wide) {
    for (u32 i = 0; i < IDS_IN_FLIGHT; ++i)
      ids[i] = LESS(first + i, end) ? __ldg((const u64 *)a.ids + first + i) : NO_ID;
  } else {
    for (u32 i = 0; i < IDS_IN_FLIGHT; ++i)
      ids[i] = LESS(first + i, end) ? (u64)(i64)__ldg((const i32 *)a.ids + first + i) : NO_ID;
  }
}

// Reads four words of a row: 16 bytes from column `at[0]` on, or one element of each of four
// columns.
template <u32 FORMAT, bool IS_ALIGNED>
DEVICE void read_row(u64 row, const u32 *at, u32 *words) {
  if (IS_ALIGNED) {
    const uint4 four = __ldg((const uint4 *)(row + at[0] * BYTES_OF(FORMAT)));  // in flight
    words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
  } else if (FORMAT == FORMAT_F32) {
    for (u32 i = 0; i < 4; ++i) words[i] = __ldg((const u32 *)row + at[i]);  // in flight
  } else {
    for (u32 i = 0; i < 4; ++i) words[i] = __ldg((const u16 *)row + at[i]);  // in flight
  }
}

// Returns element `i` of the words that `read_row` has read.
template <u32 FORMAT, bool IS_ALIGNED>
DEVICE float element_of(const u32 *words, u32 i) {
  if (IS_ALIGNED && FORMAT != FORMAT_F32) return number_of(words[i / 2] >> 16 * (i % 2), FORMAT);
  return number_of(words[i], FORMAT);
}

// Looks up one bag, or one id of a sequence: adds the rows of the ids at `start..end` and writes
// the vector to `out`.
template <u32 FORMAT, bool IS_ALIGNED>
DEVICE void look_up(const EmbeddingForward &a, const Tile &tile, u32 start, u32 end, float scale,
                    float *out) {
  const u32 COLUMNS = IS_ALIGNED && FORMAT != FORMAT_F32 ? 8 : 4;
  const u32 step = IS_ALIGNED ? 1 : a.lanes;
  const u32 lane = threadIdx.x % a.lanes * (IS_ALIGNED ? COLUMNS : 1);
  for (u32 column = lane; LESS(column, tile.dim); column += COLUMNS * a.lanes) {
    u32 at[COLUMNS];
    for (u32 c = 0; c < COLUMNS; ++c) {
      const u32 d = column + c * step;
      at[c] = LESS(d, tile.dim) ? d : column;
    }
    float sums[COLUMNS];
    for (u32 c = 0; c < COLUMNS; ++c) sums[c] = 0.0f;
    for (u32 j = start; j < end; j += IDS_IN_FLIGHT) {
      u64 ids[IDS_IN_FLIGHT];
      u32 words[IDS_IN_FLIGHT][4];
      float weights[IDS_IN_FLIGHT];
      bool is_row[IDS_IN_FLIGHT];
      read_ids(a, j, end, ids);
      for (u32 i = 0; i < IDS_IN_FLIGHT; ++i) {
        is_row[i] = LESS(ids[i], tile.rows);
        if (!is_row[i] && column == 0 && LESS(j + i, end)) atomicMin((u64 *)a.first_bad, (u64)(j + i));
      }
      for (u32 i = 0; i < IDS_IN_FLIGHT; ++i) {
        weights[i] = a.weights && is_row[i] ? __ldg((const float *)a.weights + j + i) : 1.0f;
        const u64 row = tile.weights + ids[i] * tile.dim * BYTES_OF(FORMAT);
        words[i][0] = words[i][1] = words[i][2] = words[i][3] = 0;
        if (is_row[i]) read_row<FORMAT, IS_ALIGNED>(row, at, words[i]);
      }
      // Without this choice, the compiler would add the first row before it reads the last one.
      for (u32 i = 0; i < IDS_IN_FLIGHT; ++i)
        for (u32 c = 0; c < COLUMNS; ++c) {
          const float next = sums[c] + weights[i] * element_of<FORMAT, IS_ALIGNED>(words[i], c);
          sums[c] = is_row[i] ? next : sums[c];
        }
    }
    if (IS_ALIGNED) {
      for (u32 c = 0; c < COLUMNS; c += 4)
        *(float4 *)(out + column + c) = float4{scale * sums[c], scale * sums[c + 1],
                                               scale * sums[c + 2], scale * sums[c + 3]};
    } else {
      for (u32 c = 0; c < COLUMNS; ++c)
        if (LESS(column + c * step, tile.dim)) out[column + c * step] = scale * sums[c];
    }
  }
}

// Looks up a bag. In a sequence, each id has its own output vector.
template <u32 FORMAT>
DEVICE void look_up_bag(const EmbeddingForward &a, const Slot &slot, const Tile &tile, u32 bag) {
  const u32 start = (u32)((const u64 *)a.offsets)[bag], end = (u32)((const u64 *)a.offsets)[bag + 1];
  const float scale = a.scales ? ((const float *)a.scales)[bag] : 1.0f;
  const u64 places = slot.first | slot.stride;
  const bool is_aligned = (tile.weights | tile.dim * BYTES_OF(FORMAT) | a.out | places * 4) % 16 == 0;
  const u32 ids = slot.is_sequence ? 1 : end - start;
  float *out = (float *)a.out + place_of(slot, bag % a.batch, start);
  u32 from = start;
  if (slot.is_sequence && start == end) return;
  do {
    if (is_aligned) look_up<FORMAT, true>(a, tile, from, from + ids, scale, out);
    else look_up<FORMAT, false>(a, tile, from, from + ids, scale, out);
    from += ids;
    out += slot.stride;
  } while (from < end);
}

KERNEL(embedding_forward, EmbeddingForward, 256) {
  const u32 bag = blockIdx.x * (blockDim.x / a.lanes) + threadIdx.x / a.lanes;
  if (!LESS(bag, a.features * a.batch)) return;
  const Slot slot = ((const Slot *)a.slots)[bag / a.batch];
  const Tile tile = ((const Tile *)a.tiles)[slot.tile];
  if (tile.format == FORMAT_F32) look_up_bag<FORMAT_F32>(a, slot, tile, bag);
  else if (tile.format == FORMAT_F16) look_up_bag<FORMAT_F16>(a, slot, tile, bag);
  else look_up_bag<FORMAT_BF16>(a, slot, tile, bag);
}
