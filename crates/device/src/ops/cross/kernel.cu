// The element-wise part of a cross layer, bit-identical to `scalar.rs`.
//
//    forward   out = x0 · (u + bias) + x
//    backward  d_u = d_out · x0;  d_x0 += d_out · (u + bias);  d_x = d_out
//
// The gradient of the bias is the column sums of d_u, which `gemm` computes.

struct Cross {
  u64 x0, u, bias, x, out;   // [B, N], bias [N]
  u64 d_out, d_u, d_x0, d_x;
  u64 elements;
  u32 columns, padding;
};

KERNEL(cross_forward, Cross, 256) {
  const u64 i = global_thread();
  if (!LESS(i, a.elements)) return;
  const float u = ((const float *)a.u)[i] + ((const float *)a.bias)[i % a.columns];
  ((float *)a.out)[i] = ((const float *)a.x0)[i] * u + ((const float *)a.x)[i];
}

KERNEL(cross_backward, Cross, 256) {
  const u64 i = global_thread();
  if (!LESS(i, a.elements)) return;
  const float u = ((const float *)a.u)[i] + ((const float *)a.bias)[i % a.columns];
  const float gradient = ((const float *)a.d_out)[i];
  ((float *)a.d_u)[i] = gradient * ((const float *)a.x0)[i];
  ((float *)a.d_x0)[i] += gradient * u;
  ((float *)a.d_x)[i] = gradient;
}
