// Both halves of an exchange of pooled vectors, on row-major matrices. The results are
// bit-identical to those of `scalar.rs`.
//
//   for every sample b and column c of the output, in parallel:
//     s = the segment of columns that contains c
//     sum = the first part of s at (b, c);  for the other parts, in order:  sum += part
//
// A segment ends wherever a source begins or ends, so that all its columns have the same parts.
// Vectors that this rank looked up itself are read from their own buffer. Vectors from other
// ranks lie in one buffer, matrix after matrix.

struct Exchange {
  u64 starts, firsts;  // u32 [segments + 1]: first columns, and first parts
  u64 parts;           // Part [parts]
  u64 bases;           // u32 [ranks + 1]: columns of the matrices of the ranks before
  u64 own, others;     // [samples, width of `own_rank`], and the others' matrices
  u64 out;             // [samples, width]
  u32 samples, width, segments, own_rank;
};
// Columns of one rank's matrix that a segment reads.
struct Part {
  u32 rank, column;
};

DEVICE float part_at(const Exchange &a, const Part &part, u64 sample, u32 offset) {
  const u32 base = ((const u32 *)a.bases)[part.rank];
  const u32 width = ((const u32 *)a.bases)[part.rank + 1] - base;
  const float *matrix = part.rank == a.own_rank
      ? (const float *)a.own
      : (const float *)a.others + (u64)base * a.samples;
  return matrix[sample * width + part.column + offset];
}

KERNEL(exchange, Exchange, 256) {
  const u64 i = global_thread();
  if (!LESS(i, (u64)a.samples * a.width)) return;
  const u64 sample = i / a.width;
  const u32 column = (u32)(i % a.width), *starts = (const u32 *)a.starts;
  u32 low = 0, high = a.segments;
  while (high - low > 1) {
    const u32 middle = (low + high) / 2;
    if (starts[middle] <= column) low = middle; else high = middle;
  }
  const u32 first = ((const u32 *)a.firsts)[low], end = ((const u32 *)a.firsts)[low + 1];
  // Columns that no rank sends keep their values.
  if (first == end) return;
  const Part *parts = (const Part *)a.parts;
  float sum = part_at(a, parts[first], sample, column - starts[low]);
  for (u32 p = first + 1; p < end; ++p) sum += part_at(a, parts[p], sample, column - starts[low]);
  ((float *)a.out)[i] = sum;
}
