// Operations on bags that distribute a batch on one device. Their oracle is `scalar.rs`.
//
//   permute    bag i of the output is bag source_i of the input: lengths, then (after a scan of
//              them) ids and weights
//   bucketise  an id of a key belongs to the shard whose rows hold it: shards have `block` rows
//              each; the local id is the rest. Per shard and bag: lengths, then (after a scan) ids
//              in their old order with weights
//   regroup    columns of a matrix are copied (a slot's columns to their place) or added (shards
//              of rows of one table)
//
// Each thread processes one bag, because bags are short and the bags of neighboring threads are
// adjacent in memory.

struct Permute {
  u64 sources;                              // u32 [bags]
  u64 offsets, ids, weights;                // u64, in
  u64 lengths, out_offsets, out_ids, out_weights;
  u32 bags, padding;
};

KERNEL(permute_lengths, Permute, 256) {
  const u64 bag = global_thread();
  if (!LESS(bag, a.bags)) return;
  const u32 source = ((const u32 *)a.sources)[bag];
  const u64 *offsets = (const u64 *)a.offsets;
  ((u32 *)a.lengths)[bag] = (u32)(offsets[source + 1] - offsets[source]);
}

KERNEL(permute_ids, Permute, 256) {
  const u64 bag = global_thread();
  if (!LESS(bag, a.bags)) return;
  const u32 source = ((const u32 *)a.sources)[bag];
  const u64 start = ((const u64 *)a.offsets)[source], end = ((const u64 *)a.offsets)[source + 1];
  const u64 to = ((const u64 *)a.out_offsets)[bag];
  for (u64 i = 0; i < end - start; ++i) {
    ((u64 *)a.out_ids)[to + i] = ((const u64 *)a.ids)[start + i];
    if (a.weights) ((float *)a.out_weights)[to + i] = ((const float *)a.weights)[start + i];
  }
}

struct Bucketise {
  u64 offsets, ids, weights, blocks;        // in; blocks u64 [features]: rows of a shard
  u64 lengths, out_offsets, out_ids, out_weights, positions;  // [shards, features, batch], …
  u32 features, batch, shards, padding;
};

KERNEL(bucketise_lengths, Bucketise, 256) {
  const u64 place = global_thread(), bags = (u64)a.features * a.batch;
  if (!LESS(place, bags * a.shards)) return;
  const u64 bag = place % bags, shard = place / bags;
  const u64 block = ((const u64 *)a.blocks)[bag / a.batch];
  u32 length = 0;
  for (u64 i = ((const u64 *)a.offsets)[bag]; i < ((const u64 *)a.offsets)[bag + 1]; ++i)
    length += ((const u64 *)a.ids)[i] / block == shard;
  ((u32 *)a.lengths)[place] = length;
}

KERNEL(bucketise_ids, Bucketise, 256) {
  const u64 place = global_thread(), bags = (u64)a.features * a.batch;
  if (!LESS(place, bags * a.shards)) return;
  const u64 bag = place % bags, shard = place / bags;
  const u64 block = ((const u64 *)a.blocks)[bag / a.batch];
  u64 to = ((const u64 *)a.out_offsets)[place];
  for (u64 i = ((const u64 *)a.offsets)[bag]; i < ((const u64 *)a.offsets)[bag + 1]; ++i) {
    const u64 id = ((const u64 *)a.ids)[i];
    if (id / block != shard) continue;
    ((u64 *)a.out_ids)[to] = id % block;
    ((u32 *)a.positions)[to] = (u32)i;
    if (a.weights) ((float *)a.out_weights)[to] = ((const float *)a.weights)[i];
    ++to;
  }
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
