// Lookup of all tables in one launch, pooled or not; the bytes of `scalar.rs`.
//
//   for every bag (k, b), in parallel:
//     for every column d, in parallel:
//       sum = 0
//       for j in bag, in order:  sum += weight_j · table[ids_j, d]
//       out[place(k, b) + d] = scale · sum          (a sequence: one row per j, not summed)
//
// 1. `lanes` threads share a bag, as many as the widest row keeps busy: with D 4 a warp has 8 bags.
// 2. A thread sums four columns at a time, so that an id is read once for them and four loads are
//    under way.
// A bag with an id that is no row reports its position; its output is unspecified.

struct EmbeddingForward {
  u64 tiles, slots, ids, offsets;
  u64 weights, scales;  // 0 where every one is 1
  u64 out, first_bad;
  u32 features, batch, lanes, is_wide;
};

#define COLUMNS 4

// The columns `column + i · lanes` of the rows at `start..end`, summed.
DEVICE void sum_rows(const EmbeddingForward &a, const Tile &tile, u64 start, u64 end, u32 column,
                     float *sums) {
  for (u32 i = 0; i < COLUMNS; ++i) sums[i] = 0.0f;
  for (u64 j = start; j < end; ++j) {
    const u64 id = id_at(a.ids, a.is_wide, j);
    if (!LESS(id, tile.rows)) {
      if (column == 0) atomicMin((u64 *)a.first_bad, j);
      continue;
    }
    const float weight = a.weights ? ((const float *)a.weights)[j] : 1.0f;
    for (u32 i = 0; i < COLUMNS; ++i) {
      const u32 d = column + i * a.lanes;
      if (LESS(d, tile.dim))
        sums[i] += weight * stored(tile.weights, tile.format, id * tile.dim + d);
    }
  }
}

KERNEL(embedding_forward, EmbeddingForward, 256) {
  const u64 bag = global_thread() / a.lanes;
  if (!LESS(bag, (u64)a.features * a.batch)) return;
  const Slot slot = ((const Slot *)a.slots)[bag / a.batch];
  const Tile tile = ((const Tile *)a.tiles)[slot.tile];
  const u64 start = ((const u64 *)a.offsets)[bag], end = ((const u64 *)a.offsets)[bag + 1];
  const float scale = a.scales ? ((const float *)a.scales)[bag] : 1.0f;
  float *out = (float *)a.out;
  for (u32 column = threadIdx.x % a.lanes; LESS(column, tile.dim); column += COLUMNS * a.lanes) {
    u64 from = start;
    do {
      const u64 to = slot.is_sequence && from < end ? from + 1 : end;
      if (slot.is_sequence && from == end) break;
      float sums[COLUMNS];
      sum_rows(a, tile, from, to, column, sums);
      const u64 place = place_of(slot, bag % a.batch, from);
      for (u32 i = 0; i < COLUMNS; ++i) {
        const u32 d = column + i * a.lanes;
        if (LESS(d, tile.dim)) out[place + d] = scale * sums[i];
      }
      from = to;
    } while (from < end);
  }
}
