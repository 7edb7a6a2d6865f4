// Runs the blocks of a kernel one after the other, and the threads of a block as fibers of one
// thread.
//
// This file is compiled without instrumentation and linked to a kernel that may have it. In a
// kernel compiled with -fsanitize=thread, the compiler has inserted a call before every load and
// store. This file, and not a sanitizer's library, defines the called functions. They check each
// access against the bounds of the buffers, the shared memory and the stack of the running
// thread, and against the accesses of other threads since the last barrier.
#include "shim.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <sys/mman.h>

namespace {

enum State : uint8_t { READY, IN_WARP, IN_BLOCK, DONE };
enum Kind : uint32_t {
  FINE, OUTSIDE, MISALIGNED, RACE, BARRIER, LANE, RED_ZONE, STACK, OUTSIDE_LANE
};

// The layout must match `Fault` in emulated/ffi.rs.
struct Fault {
  uint32_t kind, block, thread, other_block, other_thread, line, other_line, mask;
  uint64_t pc, other_pc, address, bytes;
  uint32_t is_write, buffer;
  char file[64];
};

// The layout of `Region` must match emulated/ffi.rs. Only the runtime uses `shadow`.
struct Access { uint32_t stamp, block, thread, warp_epoch; uint64_t pc; };
struct Cell { Access write, read; };
struct Region { uint64_t start, bytes; Cell *shadow; uint64_t padding; };

// The layout must match `EmulatedTask` in emulated/ffi.rs.
struct Task {
  void (*entry)(const void *);
  const void *arguments;
  Region *regions;
  uint64_t region_count;
  uint32_t blocks[2];
  uint32_t threads, shared_bytes, order, checked, red_zone;
  // Counts launches, blocks and barriers over all kernels of a device.
  uint32_t *stamp;
};

struct Lane { unsigned kind, mask, argument, line; const char *file; uint64_t value; };
struct Fiber {
  void *stack_pointer;
  State state;
  uint32_t warp_epoch;
  Lane lane;
  uint64_t result;
};

const size_t STACK_BYTES = 64 << 10;
const uint64_t CANARY = 0x5bd1e995c0dec0deull;
const uint32_t MANY = 0xffffffffu;
// Stands for several threads of one warp, whose number is in the lower bits.
const uint32_t MANY_OF_WARP = 0xffff0000u;
const uint32_t ATOMIC = 0x80000000u;
const size_t CELL_BYTES = 2;

Fiber fibers[1024];
char *stacks;
void *scheduler;
uint32_t current, block_number, thread_count;
Task task;
Fault fault;
uint32_t stamp, first_stamp;
// Stamp of this library's last launch. Each device counts on its own, but all devices share the
// library's shared memory.
uint32_t last_stamp;
char *dynamic_shared;
size_t dynamic_capacity;
Cell *shared_shadow, *dynamic_shadow;
size_t last_region;

extern "C" char __start_rowmill_shared[] __attribute__((weak));
extern "C" char __stop_rowmill_shared[] __attribute__((weak));
// This array makes sure that the section exists even if no kernel has shared memory.
__attribute__((section("rowmill_shared"), used, aligned(16))) char no_shared[16];

extern "C" void rowmill_switch(void **save, void *load);

// Functions of AddressSanitizer, which exist only if its library was loaded before the program.
// AddressSanitizer must know which stack is running and which memory may not be accessed.
extern "C" {
#define OPTIONAL __attribute__((weak))
OPTIONAL void __sanitizer_start_switch_fiber(void **kept, const void *bottom, size_t bytes);
OPTIONAL void __sanitizer_finish_switch_fiber(void *kept, const void **bottom, size_t *bytes);
OPTIONAL void __asan_poison_memory_region(void const volatile *start, size_t bytes);
OPTIONAL void __asan_unpoison_memory_region(void const volatile *start, size_t bytes);
}
const void *scheduler_bottom;
size_t scheduler_bytes;

void leaves_for(void **kept, const void *bottom, size_t bytes) {
  if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(kept, bottom, bytes);
}
void arrives(void *kept, const void **bottom, size_t *bytes) {
  if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(kept, bottom, bytes);
}
void forbid(const void *start, size_t bytes) {
  if (__asan_poison_memory_region) __asan_poison_memory_region(start, bytes);
}
void allow(const void *start, size_t bytes) {
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(start, bytes);
}

#if defined(__x86_64__)
asm(R"(
.text
.hidden rowmill_switch
.globl rowmill_switch
.type rowmill_switch, @function
rowmill_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size rowmill_switch, .-rowmill_switch
)");
const size_t SAVED_WORDS = 6;
#else
#error "the emulator's switch of fibers is written for x86-64"
#endif

void leave() {
  void *kept = nullptr;
  leaves_for(&kept, scheduler_bottom, scheduler_bytes);
  rowmill_switch(&fibers[current].stack_pointer, scheduler);
  arrives(kept, nullptr, nullptr);
}

[[noreturn]] void fail() {
  if (fault.kind == FINE) __builtin_trap();
  // The scheduler sees the fault, resumes no thread and ends the launch.
  for (;;) leave();
}

void report(Kind kind, const char *file, uint32_t line) {
  if (fault.kind != FINE) return;
  fault.kind = kind;
  fault.block = block_number;
  fault.thread = current;
  fault.line = line;
  if (file) snprintf(fault.file, sizeof fault.file, "%s", file);
}

void enter() {
  arrives(nullptr, &scheduler_bottom, &scheduler_bytes);
  task.entry(task.arguments);
  fibers[current].state = DONE;
  for (;;) leave();
}

void prepare(uint32_t thread) {
  char *bottom = stacks + thread * STACK_BYTES, *top = bottom + STACK_BYTES;
  // Remove the poison that the last block's thread left on this stack.
  allow(bottom, STACK_BYTES);
  memcpy(bottom, &CANARY, 8);
  void **slot = (void **)(top - 16);
  *slot = (void *)enter;
  for (size_t i = 0; i < SAVED_WORDS; ++i) *--slot = nullptr;
  fibers[thread] = Fiber();
  fibers[thread].stack_pointer = slot;
}

void resume(uint32_t thread) {
  current = thread;
  rowmill_here.thread = {thread, 0, 0};
  void *kept = nullptr;
  leaves_for(&kept, stacks + thread * STACK_BYTES, STACK_BYTES);
  rowmill_switch(&scheduler, fibers[thread].stack_pointer);
  arrives(kept, nullptr, nullptr);
}

uint64_t random_state;
uint32_t below(uint32_t bound) {
  random_state += 0x9e3779b97f4a7c15ull;
  uint64_t x = random_state;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return (uint32_t)((x ^ (x >> 31)) % bound);
}

// Orders the numbers: 0 is ascending, 1 is descending, and any larger value gives a shuffle.
void arrange(uint32_t *numbers, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) numbers[i] = task.order == 1 ? count - 1 - i : i;
  if (task.order < 2) return;
  for (uint32_t i = count; i > 1; --i) {
    uint32_t j = below(i), kept = numbers[i - 1];
    numbers[i - 1] = numbers[j];
    numbers[j] = kept;
  }
}

// Returns the value that `lane` gets from a call that all lanes of `mask` have made.
uint64_t exchanged(Fiber *warp, uint32_t lane) {
  const Lane &own = warp[lane].lane;
  uint32_t from = lane;
  switch (own.kind) {
    case ROWMILL_SHUFFLE: from = own.argument % 32; break;
    case ROWMILL_UP: from = own.argument <= lane ? lane - own.argument : lane; break;
    case ROWMILL_DOWN: from = lane + own.argument < 32 ? lane + own.argument : lane; break;
    case ROWMILL_XOR: from = (lane ^ own.argument) % 32; break;
    default: break;
  }
  uint64_t bits = 0;
  for (uint32_t other = 0; other < 32; ++other) {
    if (!(own.mask >> other & 1)) continue;
    const bool counts = own.kind == ROWMILL_BALLOT ? warp[other].lane.value != 0
                                                   : warp[other].lane.value == own.value;
    if (counts) bits |= 1u << other;
  }
  if (own.kind == ROWMILL_BALLOT || own.kind == ROWMILL_MATCH) return bits;
  if (!(own.mask >> from & 1)) {
    report(OUTSIDE_LANE, own.file, own.line);
    fault.other_thread = from;
  }
  return warp[from].lane.value;
}

bool same_call(const Lane &a, const Lane &b) {
  return a.kind == b.kind && a.mask == b.mask && a.line == b.line && strcmp(a.file, b.file) == 0;
}

// Completes the calls of a warp whose lanes have all arrived. Returns whether any thread can
// continue.
bool complete(uint32_t first) {
  Fiber *warp = fibers + first;
  const uint32_t lanes = thread_count - first < 32 ? thread_count - first : 32;
  bool goes_on = false;
  uint32_t handled = 0;
  for (uint32_t lane = 0; lane < lanes; ++lane) {
    if (warp[lane].state != IN_WARP || (handled >> lane & 1)) continue;
    const Lane own = warp[lane].lane;
    bool all = true;
    for (uint32_t other = 0; other < 32 && all; ++other) {
      if (!(own.mask >> other & 1)) continue;
      all = other < lanes && warp[other].state == IN_WARP && same_call(warp[other].lane, own);
    }
    if (!all) continue;
    uint64_t results[32] = {};
    for (uint32_t other = 0; other < lanes; ++other)
      if (own.mask >> other & 1) results[other] = (current = first + other, exchanged(warp, other));
    for (uint32_t other = 0; other < lanes; ++other) {
      if (!(own.mask >> other & 1)) continue;
      warp[other].result = results[other];
      warp[other].state = READY;
      // Shuffles and ballots do not order memory. Only a sync of the whole warp counts as doing
      // so.
      if (own.kind == ROWMILL_SYNC && own.mask == 0xffffffffu) ++warp[other].warp_epoch;
    }
    handled |= own.mask;
    goes_on = true;
  }
  return goes_on;
}

// Called when no thread can continue: either all threads have reached one barrier, or the kernel
// has a fault. Returns whether all have reached one barrier.
bool pass_barrier() {
  uint32_t waiting = 0, done = 0, in_warp = MANY, waits = MANY, finished = MANY;
  for (uint32_t i = 0; i < thread_count; ++i) {
    if (fibers[i].state == IN_BLOCK) ++waiting, waits = waits == MANY ? i : waits;
    if (fibers[i].state == DONE) ++done, finished = finished == MANY ? i : finished;
    if (fibers[i].state == IN_WARP) in_warp = in_warp == MANY ? i : in_warp;
  }
  if (done == thread_count) return false;
  if (in_warp != MANY) {
    const Lane &lane = fibers[in_warp].lane;
    const uint32_t first = in_warp / 32 * 32;
    current = in_warp;
    report(LANE, lane.file, lane.line);
    fault.mask = lane.mask;
    for (uint32_t other = 0; other < 32; ++other) {
      const uint32_t thread = first + other;
      if (!(lane.mask >> other & 1)) continue;
      const bool there = thread < thread_count && fibers[thread].state == IN_WARP &&
                         same_call(fibers[thread].lane, lane);
      if (there) continue;
      fault.other_thread = thread;
      const bool elsewhere = thread < thread_count && fibers[thread].state != DONE;
      fault.other_line = elsewhere ? fibers[thread].lane.line : 0;
      break;
    }
    return false;
  }
  const Lane &lane = fibers[waits].lane;
  for (uint32_t i = 0; i < thread_count; ++i) {
    const bool there = fibers[i].state == IN_BLOCK && same_call(fibers[i].lane, lane);
    if (there) continue;
    current = waits;
    report(BARRIER, lane.file, lane.line);
    fault.other_thread = i;
    fault.other_line = fibers[i].state == DONE ? 0 : fibers[i].lane.line;
    return false;
  }
  for (uint32_t i = 0; i < thread_count; ++i) fibers[i].state = READY;
  ++stamp;
  return true;
}

void run_block(const uint32_t *order) {
  ++stamp;
  memset(__start_rowmill_shared, 0xff, __stop_rowmill_shared - __start_rowmill_shared);
  if (task.shared_bytes) memset(dynamic_shared, 0xff, task.shared_bytes);
  for (uint32_t i = 0; i < thread_count; ++i) prepare(i);
  for (;;) {
    for (uint32_t i = 0; i < thread_count; ++i) {
      if (fibers[order[i]].state != READY) continue;
      resume(order[i]);
      if (fault.kind != FINE) return;
    }
    bool goes_on = false;
    for (uint32_t first = 0; first < thread_count; first += 32) goes_on |= complete(first);
    if (fault.kind != FINE) return;
    if (!goes_on && !pass_barrier()) break;
  }
  for (uint32_t i = 0; i < thread_count && fault.kind == FINE; ++i)
    if (memcmp(stacks + i * STACK_BYTES, &CANARY, 8) != 0) current = i, report(STACK, nullptr, 0);
}

// Returns the warp of a thread, or the warp that a recorded access belongs to.
uint32_t warp_of(uint32_t thread) {
  return thread == MANY ? MANY : thread >= MANY_OF_WARP ? thread & 0xffff : thread / 32;
}

// Returns whether an earlier access of this launch may come before or after the current one.
// Every block has its own shared memory, so accesses of other blocks to shared memory do not
// race.
bool races(const Access &then, bool was_atomic, bool is_atomic, uint32_t epoch, bool is_shared) {
  if (then.stamp < first_stamp || then.stamp == 0) return false;
  if (was_atomic && is_atomic) return false;
  if (then.block != block_number) return !is_shared;
  if (then.thread == current) return false;
  if (then.stamp != stamp) return false;
  return !(warp_of(then.thread) == current / 32 && (then.warp_epoch & ~ATOMIC) < epoch);
}

void race(const Access &then, uint64_t pc, bool is_write) {
  report(RACE, nullptr, 0);
  fault.pc = pc, fault.other_pc = then.pc;
  fault.other_block = then.block;
  fault.other_thread = then.thread >= MANY_OF_WARP ? MANY : then.thread;
  fault.is_write = is_write;
  fail();
}

void note(Cell *cells, uint64_t offset, size_t bytes, uint64_t pc, bool is_write, bool is_atomic,
          bool is_shared) {
  const uint32_t epoch = fibers[current].warp_epoch;
  const Access now = {stamp, block_number, current, epoch | (is_atomic ? ATOMIC : 0), pc};
  const uint64_t last = (offset + bytes - 1) / CELL_BYTES;
  for (uint64_t i = offset / CELL_BYTES; i <= last; ++i) {
    Cell &cell = cells[i];
    if (races(cell.write, cell.write.warp_epoch & ATOMIC, is_atomic, epoch, is_shared)) race(cell.write, pc, is_write);
    if (is_write) {
      if (races(cell.read, cell.read.warp_epoch & ATOMIC, is_atomic, epoch, is_shared)) race(cell.read, pc, true);
      cell.write = now;
    }
    if (!is_write || is_atomic) {
      const bool old = cell.read.stamp < first_stamp || cell.read.stamp == 0;
      if (!old && !is_shared && cell.read.block != block_number)
        cell.read = {stamp, MANY, MANY, now.warp_epoch, pc};
      else if (!old && races(cell.read, false, false, epoch, is_shared))
        cell.read = {stamp, block_number, warp_of(cell.read.thread) == current / 32 ? MANY_OF_WARP | current / 32 : MANY,
                     now.warp_epoch, pc};
      else
        cell.read = now;
    }
  }
}

void touch(uint64_t address, size_t bytes, size_t alignment, uint64_t pc, bool is_write, bool is_atomic) {
  const uint64_t stack = (uint64_t)(stacks + current * STACK_BYTES);
  if (address - stack < STACK_BYTES) return;
  if (address % alignment != 0) {
    report(MISALIGNED, nullptr, 0);
    fault.pc = pc, fault.address = address, fault.bytes = alignment, fault.is_write = is_write;
    fail();
  }
  const uint64_t shared = (uint64_t)__start_rowmill_shared;
  const uint64_t shared_bytes = __stop_rowmill_shared - __start_rowmill_shared;
  if (address - shared < shared_bytes && address - shared + bytes <= shared_bytes)
    return note(shared_shadow, address - shared, bytes, pc, is_write, is_atomic, true);
  const uint64_t dynamic = (uint64_t)dynamic_shared;
  if (address - dynamic < task.shared_bytes && address - dynamic + bytes <= task.shared_bytes)
    return note(dynamic_shadow, address - dynamic, bytes, pc, is_write, is_atomic, true);
  for (size_t tried = 0; tried < task.region_count; ++tried) {
    const size_t i = (last_region + tried) % task.region_count;
    Region &region = task.regions[i];
    if (address - region.start >= region.bytes) continue;
    if (address - region.start + bytes > region.bytes) break;
    last_region = i;
    return note(region.shadow, address - region.start, bytes, pc, is_write, is_atomic, false);
  }
  // The kernel may also read the variable that holds the position of the running thread.
  const uint64_t here = (uint64_t)&rowmill_here;
  if (address - here < sizeof rowmill_here) return;
  report(OUTSIDE, nullptr, 0);
  fault.pc = pc, fault.address = address, fault.bytes = bytes, fault.is_write = is_write;
  fail();
}

void each_red_zone(void (*work)(const void *start, size_t bytes)) {
  for (size_t i = 0; i < task.region_count; ++i) {
    const Region &region = task.regions[i];
    work((const char *)region.start - task.red_zone, task.red_zone);
    work((const char *)region.start + region.bytes, task.red_zone);
  }
}

bool red_zones_hold() {
  for (size_t i = 0; i < task.region_count; ++i) {
    const Region &region = task.regions[i];
    const uint8_t *start = (const uint8_t *)region.start, *end = start + region.bytes;
    for (uint32_t k = 1; k <= task.red_zone; ++k)
      if (start[-(int)k] != 0xa5 || end[k - 1] != 0xa5) {
        report(RED_ZONE, nullptr, 0);
        fault.buffer = (uint32_t)i;
        return false;
      }
  }
  return true;
}

// Converts a return address to the offset of its call in the file of this library.
uint64_t place_of(uint64_t pc) {
  Dl_info info;
  return pc && dladdr((void *)pc, &info) ? pc - 1 - (uint64_t)info.dli_fbase : 0;
}

void *zeroed(size_t bytes) {
  void *place = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) abort();
  return place;
}

}  // namespace

extern "C" {

RowmillHere rowmill_here;

void *rowmill_dynamic_shared() { return dynamic_shared; }

void rowmill_block_barrier(const char *file, unsigned line) {
  fibers[current].lane = {0, 0, 0, line, file, 0};
  fibers[current].state = IN_BLOCK;
  leave();
}

uint64_t rowmill_warp(unsigned kind, unsigned mask, uint64_t value, unsigned argument, const char *file, unsigned line) {
  if (!(mask >> current % 32 & 1)) {
    report(OUTSIDE_LANE, file, line);
    fault.mask = mask, fault.other_thread = current % 32;
    fail();
  }
  fibers[current].lane = {kind, mask, argument, line, file, value};
  fibers[current].state = IN_WARP;
  leave();
  return fibers[current].result;
}

uint64_t rowmill_atomic(unsigned kind, void *place, unsigned bytes, uint64_t value) {
  if (task.checked)
    touch((uint64_t)place, bytes, bytes, (uint64_t)__builtin_return_address(0), true, true);
  uint64_t old = 0;
  memcpy(&old, place, bytes);
  const uint64_t made = kind == 0 ? old + value : kind == 1 ? (value < old ? value : old) : old | value;
  memcpy(place, &made, bytes);
  return old;
}

void rowmill_aligned(const void *place, unsigned bytes) {
  if ((uint64_t)place % bytes == 0) return;
  report(MISALIGNED, nullptr, 0);
  fault.pc = (uint64_t)__builtin_return_address(0);
  fault.address = (uint64_t)place, fault.bytes = bytes, fault.is_write = 0;
  fail();
}

float rowmill_f32_of_f16(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 0x3ff;
  float value;
  if (exponent == 0) {
    value = ldexpf((float)mantissa, -24);
    return sign ? -value : value;
  }
  const uint32_t bits = sign | (exponent == 31 ? 0x7f800000u | mantissa << 13 : (exponent + 112) << 23 | mantissa << 13);
  memcpy(&value, &bits, 4);
  return value;
}

// Rounds to the nearest f16, ties to even.
uint16_t rowmill_f16_of_f32(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x47800000) return (uint16_t)(sign | 0x7c00);
  if (magnitude < 0x38800000) {
    float positive;
    memcpy(&positive, &magnitude, 4);
    return (uint16_t)(sign | (uint32_t)nearbyintf(ldexpf(positive, 24)));
  }
  const uint32_t odd = magnitude >> 13 & 1;
  return (uint16_t)(sign | ((magnitude + 0xfff + odd - (112u << 23)) >> 13));
}

int rowmill_launch(const Task *given, Fault *result) {
  task = *given;
  fault = Fault();
  thread_count = task.threads;
  last_region = 0;
  if (!stacks) stacks = (char *)zeroed(1024 * STACK_BYTES);
  const size_t shared = __stop_rowmill_shared - __start_rowmill_shared;
  if (task.checked && !shared_shadow)
    shared_shadow = (Cell *)zeroed((shared / CELL_BYTES + 1) * sizeof(Cell));
  if (task.shared_bytes > dynamic_capacity) {
    dynamic_capacity = task.shared_bytes;
    dynamic_shared = (char *)zeroed(dynamic_capacity + task.red_zone);
    if (task.checked) dynamic_shadow = (Cell *)zeroed((dynamic_capacity / CELL_BYTES + 1) * sizeof(Cell));
  }
  for (size_t i = 0; i < task.region_count && task.checked; ++i) {
    Region &region = task.regions[i];
    if (!region.shadow) region.shadow = (Cell *)zeroed((region.bytes / CELL_BYTES + 1) * sizeof(Cell));
    given->regions[i].shadow = region.shadow;
  }
  if (dynamic_shared) {
    allow(dynamic_shared, task.shared_bytes);
    forbid(dynamic_shared + task.shared_bytes, dynamic_capacity - task.shared_bytes + task.red_zone);
  }
  each_red_zone(forbid);
  const uint32_t count = task.blocks[0] * task.blocks[1];
  uint32_t *blocks = (uint32_t *)malloc((count ? count : 1) * sizeof(uint32_t));
  uint32_t threads[1024];
  stamp = *task.stamp > last_stamp ? *task.stamp : last_stamp;
  random_state = task.order;
  arrange(blocks, count);
  first_stamp = ++stamp;
  rowmill_here.threads = {task.threads, 1, 1};
  rowmill_here.blocks = {task.blocks[0], task.blocks[1], 1};
  for (uint32_t i = 0; i < count && fault.kind == FINE; ++i) {
    block_number = blocks[i];
    rowmill_here.block = {block_number % task.blocks[0], block_number / task.blocks[0], 0};
    arrange(threads, thread_count);
    run_block(threads);
  }
  free(blocks);
  last_stamp = *task.stamp = ++stamp;
  each_red_zone(allow);
  if (fault.kind == FINE) red_zones_hold();
  fault.pc = place_of(fault.pc), fault.other_pc = place_of(fault.other_pc);
  *result = fault;
  return fault.kind != FINE;
}

void rowmill_forget(Region *region) {
  if (region->shadow) munmap(region->shadow, (region->bytes / CELL_BYTES + 1) * sizeof(Cell));
  region->shadow = nullptr;
}

#define PC ((uint64_t)__builtin_return_address(0))
#define ACCESS(bytes)                                                                              \
  void __tsan_read##bytes(void *at) { touch((uint64_t)at, bytes, bytes, PC, false, false); }         \
  void __tsan_write##bytes(void *at) { touch((uint64_t)at, bytes, bytes, PC, true, false); }         \
  void __tsan_unaligned_read##bytes(void *at) { touch((uint64_t)at, bytes, 1, PC, false, false); }   \
  void __tsan_unaligned_write##bytes(void *at) { touch((uint64_t)at, bytes, 1, PC, true, false); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __tsan_read_range(void *at, uint64_t bytes) { if (bytes) touch((uint64_t)at, bytes, 1, PC, false, false); }
void __tsan_write_range(void *at, uint64_t bytes) { if (bytes) touch((uint64_t)at, bytes, 1, PC, true, false); }
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_init() {}
}
