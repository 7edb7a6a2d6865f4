// The row rules of `optimizer/*.rs` and the rounding of `rounding.rs`, for single values.
// Multiplications and additions round separately (no contraction), so the bytes are those of the
// scalar forms.

#define SGD 0u
#define ADAGRAD 1u
#define ROWWISE_ADAGRAD 2u
#define ADAM 3u
#define LAMB 4u

// `Rule` of `optimizer/mod.rs`. Adam and SparseAdam differ only in their factors. The host writes
// one block of this layout to the device before a step.
struct Rule {
  u32 kind;
  float learning_rate, epsilon, l2, decoupled;
  float mean_take, mean_correction, square_take, square_correction;
  u32 padding;
  u64 rounding;  // key of the step's random bits
};

DEVICE float shrink_of(const Rule &rule) { return 1.0f - rule.learning_rate * rule.decoupled; }

// Returns the direction m̂ / (√v̂ + ε).
DEVICE float corrected(const Rule &rule, float mean, float square) {
  const float root = sqrtf(rule.square_correction * square);
  return rule.mean_correction * mean / (root + rule.epsilon);
}

// Updates both moments of a weight: m += (1 − β₁)(g − m), v += (1 − β₂)(g² − v).
DEVICE void update_moments(const Rule &rule, float gradient, float *mean, float *square) {
  *mean = *mean + rule.mean_take * (gradient - *mean);
  *square = *square + rule.square_take * (gradient * gradient - *square);
}

// Returns the new weight under SGD, Adagrad or Adam, whose step for an element depends only on
// this element. `first` and `second` are its state, if the rule has any.
DEVICE float updated(const Rule &rule, float weight, float gradient, float *first, float *second) {
  const float with_decay = gradient + rule.l2 * weight, shrink = shrink_of(rule);
  if (rule.kind == SGD) return shrink * weight - rule.learning_rate * with_decay;
  if (rule.kind == ADAGRAD) {
    *first += with_decay * with_decay;
    const float step = rule.learning_rate * with_decay / (sqrtf(*first) + rule.epsilon);
    return shrink * weight - step;
  }
  update_moments(rule, with_decay, first, second);
  return shrink * weight - rule.learning_rate * corrected(rule, *first, *second);
}

// Returns a row's sum in every lane of a warp. Lane `l` holds part `l` of 16, the sum of the
// columns that are `l` modulo 16, in order. The parts are added by halving, like in
// `optimizer/parts.rs`.
DEVICE float total_of_parts(float part) {
  for (u32 half = 8; half > 0; half /= 2) part += __shfl_down_sync(ALL_LANES, part, half);
  return __shfl_sync(ALL_LANES, part, 0);
}

// Returns 32 random bits for a column of the row with this key, like `rounding::noise`.
DEVICE u32 noise_of(u64 key, u32 column) {
  u32 x = (u32)key + column * 0x9e3779b9u;
  x = (x ^ (x >> 16)) * 0x7feb352du + (u32)(key >> 32);
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

DEVICE u32 smaller(u32 a, u32 b) { return a < b ? a : b; }

// Rounds to f16 with the random bits `noise`, like `rounding::to_f16`.
DEVICE u16 rounded_to_f16(float value, u32 noise) {
  const u32 bits = bits_of(value), magnitude = bits & 0x7fffffffu;
  u32 rounded;
  if (magnitude >= 0x7f800000u) {
    rounded = magnitude > 0x7f800000u ? 0x7fc00000u : 0x7f800000u;
  } else if (magnitude < 0x38800000u) {
    const float fraction = (float)(noise >> 18) * (1.0f / 16384.0f);
    const i32 units = (i32)(f32_of_bits(magnitude) * 16777216.0f + fraction);
    rounded = bits_of((float)units * (1.0f / 16777216.0f));
  } else {
    rounded = smaller((magnitude + (noise >> 19)) & ~0x1fffu, 0x477fe000u);
  }
  return f16_of_f32(f32_of_bits(rounded | (bits & 0x80000000u)));
}

// Rounds to bf16 with the random bits `noise`, like `rounding::to_bf16`.
DEVICE u16 rounded_to_bf16(float value, u32 noise) {
  const u32 bits = bits_of(value), magnitude = bits & 0x7fffffffu;
  u32 rounded;
  if (magnitude >= 0x7f800000u) {
    rounded = magnitude > 0x7f800000u ? 0x7fc00000u : 0x7f800000u;
  } else {
    rounded = smaller((magnitude + (noise >> 16)) & ~0xffffu, 0x7f7f0000u);
  }
  return (u16)((rounded | (bits & 0x80000000u)) >> 16);
}

// Stores element `index` of an array in `format`. A 16-bit format is rounded with `noise`.
DEVICE void store_rounded(u64 array, u32 format, u64 index, float value, u32 noise) {
  if (format == FORMAT_F32)
    ((float *)array)[index] = value;
  else if (format == FORMAT_F16)
    ((u16 *)array)[index] = rounded_to_f16(value, noise);
  else
    ((u16 *)array)[index] = rounded_to_bf16(value, noise);
}
