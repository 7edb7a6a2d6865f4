// Element-wise activations, bit-identical to `scalar.rs`.
//
//    relu_backward  d_y = 0 where y ≤ 0
//    sigmoid        p = 1 / (1 + e^−z), in f64, without overflow for large |z|, rounded once
//    unbounded_has_none  p = NaN where z is not finite, whatever the sigmoid returns for it
//    bias_relu      y = max(y + bias, 0), or y + bias; NaN stays NaN

struct Activation {
  u64 in, out, bias;
  u64 elements;
  u32 columns, is_relu;
};

KERNEL(relu_backward, Activation, 256) {
  const u64 i = global_thread();
  if (!LESS(i, a.elements)) return;
  if (((const float *)a.in)[i] <= 0.0f) ((float *)a.out)[i] = 0.0f;
}

KERNEL(sigmoid, Activation, 256) {
  const u64 i = global_thread();
  if (!LESS(i, a.elements)) return;
  const double z = ((const float *)a.in)[i], e = exp(-fabs(z));
  ((float *)a.out)[i] = (float)(z < 0.0 ? e / (1.0 + e) : 1.0 / (1.0 + e));
}

KERNEL(unbounded_has_none, Activation, 256) {
  const u64 i = global_thread();
  if (!LESS(i, a.elements)) return;
  if (!(fabsf(((const float *)a.in)[i]) <= 3.402823466e38f)) ((float *)a.out)[i] = f32_of_bits(0x7fc00000u);
}

KERNEL(bias_relu, Activation, 256) {
  const u64 i = global_thread();
  if (!LESS(i, a.elements)) return;
  const float y = ((float *)a.out)[i] + ((const float *)a.bias)[i % a.columns];
  ((float *)a.out)[i] = a.is_relu && y < 0.0f ? 0.0f : y;
}
