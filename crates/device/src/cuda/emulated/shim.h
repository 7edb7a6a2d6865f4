// The CUDA names that a kernel uses, for a C++ compiler. Their functions are defined in
// runtime.cpp.
#pragma once
#define ROWMILL_EMULATED 1
#include <cmath>
#include <cstddef>
#include <cstdint>

struct uint3 { unsigned x, y, z; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };

// Position of the running thread in the grid, which the scheduler writes whenever it switches.
struct RowmillHere { uint3 thread, block, threads, blocks; };
extern "C" RowmillHere rowmill_here;
#define threadIdx (rowmill_here.thread)
#define blockIdx (rowmill_here.block)
#define blockDim (rowmill_here.threads)
#define gridDim (rowmill_here.blocks)

#define __device__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict
// One block runs at a time, so all blocks can use the same static memory. A section of its own
// lets the runtime poison this memory at the start of each block and recognize accesses to it.
#define __shared__ static __attribute__((section("rowmill_shared"), aligned(16)))

enum RowmillWarp { ROWMILL_SYNC, ROWMILL_SHUFFLE, ROWMILL_UP, ROWMILL_DOWN, ROWMILL_XOR, ROWMILL_BALLOT, ROWMILL_MATCH };
extern "C" {
void rowmill_block_barrier(const char *file, unsigned line);
uint64_t rowmill_warp(unsigned kind, unsigned mask, uint64_t value, unsigned argument, const char *file, unsigned line);
void *rowmill_dynamic_shared();
float rowmill_f32_of_f16(uint16_t half);
uint16_t rowmill_f16_of_f32(float value);
// Updates a value in one step, where `kind` 0 is add, 1 is min and 2 is or. Returns the old
// value.
uint64_t rowmill_atomic(unsigned kind, void *place, unsigned bytes, uint64_t value);
void rowmill_aligned(const void *place, unsigned bytes);
}

#define __syncthreads() rowmill_block_barrier(__FILE__, __LINE__)
#define __syncwarp() rowmill_warp(ROWMILL_SYNC, 0xffffffffu, 0, 0, __FILE__, __LINE__)
#define __ballot_sync(mask, predicate) \
  ((unsigned)rowmill_warp(ROWMILL_BALLOT, mask, !!(predicate), 0, __FILE__, __LINE__))
#define __match_any_sync(mask, value) \
  ((unsigned)rowmill_warp(ROWMILL_MATCH, mask, value, 0, __FILE__, __LINE__))
#define __shfl_sync(mask, value, lane) \
  rowmill_shuffled(ROWMILL_SHUFFLE, mask, value, lane, __FILE__, __LINE__)
#define __shfl_up_sync(mask, value, delta) \
  rowmill_shuffled(ROWMILL_UP, mask, value, delta, __FILE__, __LINE__)
#define __shfl_down_sync(mask, value, delta) \
  rowmill_shuffled(ROWMILL_DOWN, mask, value, delta, __FILE__, __LINE__)
#define __shfl_xor_sync(mask, value, bits) \
  rowmill_shuffled(ROWMILL_XOR, mask, value, bits, __FILE__, __LINE__)

template <class T>
static inline __attribute__((always_inline)) T rowmill_shuffled(unsigned kind, unsigned mask, T value, unsigned argument, const char *file, unsigned line) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  bits = rowmill_warp(kind, mask, bits, argument, file, line);
  __builtin_memcpy(&value, &bits, sizeof(T));
  return value;
}

// Reads a value that no thread of the launch writes.
#define __ldg(place) (*(place))
static inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
static inline int __ffs(int bits) { return __builtin_ffs(bits); }
static inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz((unsigned)bits); }
template <class T> static inline T atomicAdd(T *place, T value) { return (T)rowmill_atomic(0, place, sizeof(T), value); }
template <class T> static inline T atomicMin(T *place, T value) { return (T)rowmill_atomic(1, place, sizeof(T), value); }
template <class T> static inline T atomicOr(T *place, T value) { return (T)rowmill_atomic(2, place, sizeof(T), value); }
