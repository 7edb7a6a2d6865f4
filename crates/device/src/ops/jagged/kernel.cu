// The local halves of an exchange of ids, and copies of columns. Their oracle is `scalar.rs`.
//
//   split     for every slot and sample of the batch, in parallel: the number of ids that are rows of
//             the slot's tile; then, after a scan of these lengths, the ids and weights
//   join      the ids of a slot, which lie apart because every rank sent its samples together, are
//             put side by side: bag by bag for lengths and scales; then, after scans of the old and
//             the new lengths, id by id
//   regroup   columns of a matrix are copied (a slot's columns to their place) or added (shards
//             of rows of one table)
//
// A thread of `split` processes one bag, because bags are short and the bags of neighboring threads
// are adjacent in memory. A thread of `join_ids` copies one id: the ids of a slot and a rank lie
// together in both orders, so a thread finds its id by a search over slots and ranks. The number of
// ids is read from device memory, so a launch depends on the capacity for ids alone.

#define NO_POSITION 0xffffffffu

// The ids of one feature that one tile looks up.
struct IdSlot {
  i64 first, end;          // rows of the tile
  u32 feature, position;   // NO_POSITION for a slot that uses whole bags
  u32 all_rows, mean;
};

struct Split {
  u64 offsets, ids, weights;                // of the batch: u64 [features * batch + 1], i64, f32
  u64 slots;                                // IdSlot [slot_count]
  u64 lengths;                              // u32 [slot_count, batch]
  u64 out_offsets, out_ids, out_weights, scales;
  u32 slot_count, batch;
};

// The ids of a bag that a slot looks up.
struct Positions {
  u64 start, end;
};

DEVICE Positions positions_of(const Split &a, const IdSlot &slot, u64 sample) {
  const u64 *offsets = (const u64 *)a.offsets + (u64)slot.feature * a.batch + sample;
  Positions bag = {offsets[0], offsets[1]};
  if (slot.position != NO_POSITION) {
    const u64 at = bag.start + slot.position;
    const bool is_there = at < bag.end;
    bag.start = is_there ? at : bag.end;
    bag.end = is_there ? at + 1 : bag.end;
  }
  return bag;
}

DEVICE bool is_row_of(const IdSlot &slot, i64 id) {
  return slot.all_rows || (id >= slot.first && id < slot.end);
}

KERNEL(split_lengths, Split, 256) {
  const u64 bag = global_thread();
  if (!LESS(bag, (u64)a.slot_count * a.batch)) return;
  const IdSlot slot = ((const IdSlot *)a.slots)[bag / a.batch];
  const Positions at = positions_of(a, slot, bag % a.batch);
  u32 length = (u32)(at.end - at.start);
  if (a.scales) ((float *)a.scales)[bag] = slot.mean && length > 0 ? 1.0f / (float)length : 1.0f;
  if (!slot.all_rows) {
    length = 0;
    for (u64 i = at.start; i < at.end; ++i) length += is_row_of(slot, ((const i64 *)a.ids)[i]);
  }
  ((u32 *)a.lengths)[bag] = length;
}

KERNEL(split_ids, Split, 256) {
  const u64 bag = global_thread();
  if (!LESS(bag, (u64)a.slot_count * a.batch)) return;
  const IdSlot slot = ((const IdSlot *)a.slots)[bag / a.batch];
  const Positions at = positions_of(a, slot, bag % a.batch);
  u64 to = ((const u64 *)a.out_offsets)[bag];
  for (u64 i = at.start; i < at.end; ++i) {
    const i64 id = ((const i64 *)a.ids)[i];
    if (!is_row_of(slot, id)) continue;
    ((i64 *)a.out_ids)[to] = id - slot.first;
    if (a.weights) ((float *)a.out_weights)[to] = ((const float *)a.weights)[i];
    ++to;
  }
}

struct Join {
  u64 lengths, offsets;                     // u32 [bags], u64 [bags + 1], by rank, slot and sample
  u64 ids, weights, scales;                 // in the order of `offsets`
  u64 bases;                                // u32 [ranks + 1]: samples of the ranks before
  u64 out_lengths, out_offsets;             // u32 [bags], u64 [bags + 1], by slot and sample
  u64 out_ids, out_weights, out_scales;
  u32 slots, ranks;
};

// Returns the place of a bag in the messages. `sample` counts over the samples of all ranks.
DEVICE u64 sent_bag(const Join &a, u64 slot, u32 rank, u64 sample) {
  const u32 *bases = (const u32 *)a.bases;
  const u64 base = bases[rank], samples = bases[rank + 1] - base;
  return a.slots * base + slot * samples + sample - base;
}

KERNEL(join_lengths, Join, 256) {
  const u32 *bases = (const u32 *)a.bases;
  const u64 bag = global_thread(), samples = bases[a.ranks];
  if (!LESS(bag, a.slots * samples)) return;
  const u64 slot = bag / samples, sample = bag % samples;
  // The last rank whose samples begin at or before this one. Ranks without samples come before.
  u32 low = 0, high = a.ranks;
  while (high - low > 1) {
    const u32 middle = (low + high) / 2;
    if (bases[middle] <= sample) low = middle; else high = middle;
  }
  const u64 sent = sent_bag(a, slot, low, sample);
  ((u32 *)a.out_lengths)[bag] = ((const u32 *)a.lengths)[sent];
  if (a.scales) ((float *)a.out_scales)[bag] = ((const float *)a.scales)[sent];
}

KERNEL(join_ids, Join, 256) {
  const u32 *bases = (const u32 *)a.bases;
  const u64 *out_offsets = (const u64 *)a.out_offsets;
  const u64 i = global_thread(), samples = bases[a.ranks];
  if (!LESS(i, out_offsets[a.slots * samples])) return;
  // The last pair of a slot and a rank whose ids begin at or before this one. Pairs without ids
  // come before.
  u32 low = 0, high = a.slots * a.ranks;
  while (high - low > 1) {
    const u32 middle = (low + high) / 2;
    const u64 first = middle / a.ranks * samples + bases[middle % a.ranks];
    if (out_offsets[first] <= i) low = middle; else high = middle;
  }
  const u32 slot = low / a.ranks, rank = low % a.ranks;
  const u64 start = out_offsets[slot * samples + bases[rank]];
  const u64 from = ((const u64 *)a.offsets)[sent_bag(a, slot, rank, bases[rank])] + i - start;
  ((i64 *)a.out_ids)[i] = ((const i64 *)a.ids)[from];
  if (a.weights) ((float *)a.out_weights)[i] = ((const float *)a.weights)[from];
}

struct Regroup {
  u64 from, to;                             // [rows, from_width], [rows, to_width]
  u32 rows, columns, from_width, to_width, from_column, to_column, is_added, padding;
};

KERNEL(regroup, Regroup, 256) {
  const u64 i = global_thread();
  if (!LESS(i, (u64)a.rows * a.columns)) return;
  const u64 row = i / a.columns, column = i % a.columns;
  const float value = ((const float *)a.from)[row * a.from_width + a.from_column + column];
  float *to = (float *)a.to + row * a.to_width + a.to_column + column;
  *to = a.is_added ? *to + value : value;
}
