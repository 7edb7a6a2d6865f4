// The start of every kernel source: types, warps and stored number formats. NVRTC compiles it for
// a GPU, and a C++ compiler compiles it for the emulator. The emulator's own header precedes it
// and defines ROWMILL_EMULATED. No header of CUDA is needed.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

#define DEVICE static __device__ __forceinline__

// `LESS(i, n)` is a bound check. It has a name so that the mutation test finds it.
#define LESS(index, bound) ((index) < (bound))

#ifdef ROWMILL_EMULATED
// Portable versions of the functions that a GPU implements in assembly, and the entry point
// through which the emulator calls a kernel with the bytes of its arguments.
#define KERNEL(name, Arguments, threads)                                              \
  static void name(const Arguments a);                                                \
  extern "C" __attribute__((no_sanitize("thread"))) void rowmill_entry_##name(const void *bytes) { \
    name(*(const Arguments *)bytes);                                                  \
  }                                                                                   \
  extern "C" const unsigned rowmill_shape_##name[2] = {sizeof(Arguments), threads};   \
  static void name(const Arguments a)
#define DYNAMIC_SHARED(type, name) type *name = (type *)rowmill_dynamic_shared()
DEVICE float f32_of_f16(u16 half) { return rowmill_f32_of_f16(half); }
DEVICE u16 f16_of_f32(float value) { return rowmill_f16_of_f32(value); }
DEVICE u32 bits_of(float value) { u32 bits; __builtin_memcpy(&bits, &value, 4); return bits; }
DEVICE void prefetch_line(u64) {}
DEVICE float f32_of_bits(u32 bits) { float value; __builtin_memcpy(&value, &bits, 4); return value; }
#else
#define KERNEL(name, Arguments, threads)                                              \
  extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ Arguments a)
#define DYNAMIC_SHARED(type, name)                                                    \
  extern __shared__ __align__(16) unsigned char rowmill_dynamic[];                    \
  type *name = (type *)rowmill_dynamic
DEVICE float f32_of_f16(u16 half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
}
DEVICE u16 f16_of_f32(float value) {
  u16 half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
}
DEVICE u32 bits_of(float value) { return __float_as_uint(value); }
// Prefetches the cache line that holds an address into the L2 cache.
DEVICE void prefetch_line(u64 address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }
DEVICE float f32_of_bits(u32 bits) { return __uint_as_float(bits); }
#endif

#define WARP 32u
#define LINE_BYTES 128u
#define ALL_LANES 0xffffffffu

DEVICE u32 lane_of_thread() { return threadIdx.x % WARP; }
DEVICE u32 warp_of_thread() { return threadIdx.x / WARP; }
// Index of this thread in the whole grid.
DEVICE u64 global_thread() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }

// Number formats of stored weights, as the function `format` in `cuda.rs` encodes them.
#define FORMAT_F32 0u
#define FORMAT_F16 1u
#define FORMAT_BF16 2u

// Converts a word in `format` to f32, exactly. A 16-bit format uses the lower bits of the word.
DEVICE float number_of(u32 word, u32 format) {
  if (format == FORMAT_F32) return f32_of_bits(word);
  return format == FORMAT_F16 ? f32_of_f16((u16)word) : f32_of_bits(word << 16);
}
// Loads element `index` of an array whose elements are in `format`.
DEVICE float stored(u64 array, u32 format, u64 index) {
  const bool is_f32 = format == FORMAT_F32;
  return number_of(is_f32 ? ((const u32 *)array)[index] : ((const u16 *)array)[index], format);
}

// The finalizer of SplitMix64, equal to `schema::random::mix`.
DEVICE u64 mix(u64 x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
// `random_child` and `random_bits` equal `CounterRng::child` and `CounterRng::bits` of the
// generator with this key.
DEVICE u64 random_child(u64 key, u64 stream) {
  return mix(key + mix(stream + 0x632be59bd9b4e019ull));
}
DEVICE u64 random_bits(u64 key, u64 counter) { return mix(key + counter * 0x9e3779b97f4a7c15ull); }

// A table, or the tile of it on this device. Both embedding operations read this struct, which
// `ops/embedding_forward/cuda.rs` writes.
struct Tile {
  u64 weights, state;  // weights [rows, dim] in `format`; state in f32
  u64 rows;
  u64 first_row;       // index of the first row, counted over all tiles
  u64 origin_row;      // position in the whole table, given by `table` and `column`
  u32 dim, format, table, column;
};
// Destination of a key's vectors. The vector of a sample begins at `first + stride · sample`, and
// a vector of a sequence at `first + stride · position`.
struct Slot {
  u64 first, stride;
  u32 tile, is_sequence;
};
DEVICE u64 place_of(const Slot &slot, u64 sample, u64 position) {
  return slot.first + (slot.is_sequence ? position : sample) * slot.stride;
}
// A negative id becomes a huge number when it is read as unsigned, so it is out of range.
DEVICE u64 id_at(u64 ids, u32 is_wide, u64 position) {
  return is_wide ? ((const u64 *)ids)[position] : (u64)(i64)((const i32 *)ids)[position];
}
