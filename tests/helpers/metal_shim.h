// Enough of Metal to compile a kernel's body as C++20 and to run it: what a course's kernel is likely to use.
//
// Covered: bool, the integers, float, half and bfloat, uint2 and uint3 (fields only); max, min, clamp, exp,
// exp2,
//   log, log2, sqrt, rsqrt, abs, fabs, fma, as_type; simd_sum, simd_product, simd_max, simd_min,
//   simd_shuffle, _xor, _down, _up and simd_broadcast; both barriers with their flags; threadgroup values and
//   arrays of one or two axes, pointers into threadgroup and device memory.
// Told, with the thread and the number of its barrier: an index outside a buffer, in threadgroup memory a
// race
//   and a read of what no thread of this threadgroup has written. A simdgroup_barrier orders its own lanes,
//   and a flag without mem_threadgroup orders nothing there. A simd function orders no memory.
// Not covered: vectors of floats and arithmetic on vectors, atomics, simdgroup matrices, textures, quad
// functions,
//   references to threadgroup memory, `auto` for an element of it (name the type instead), races on device
//   memory, the speed of anything.
//
// The threads of a threadgroup are fibers that take turns: each runs until it has to wait for others. A
// simdgroup is 32 neighbouring threads. A thread that has returned takes no part in an exchange, as on a GPU.

#pragma once

#ifdef __APPLE__
#define _XOPEN_SOURCE 700  // declares the functions of ucontext.h
#define _DARWIN_C_SOURCE
#endif
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "metal_types.h"

// --- threads and arrays ---

namespace emulated {

constexpr uint LANES = 32, MAX_THREADS = 1024, STACK_BYTES = 64 * 1024;

// Threads that have to meet. A meeting is over when all that still run have come.
struct Meeting {
  uint expected = 0, come = 0, number = 0;
};

struct Simdgroup {
  Meeting meeting;
  // What each lane brought, and to which meeting: two in turn, since a fast lane may be one meeting ahead.
  uint64_t brought[2][LANES];
  uint at[2][LANES];
};

struct Thread {
  ucontext_t context;
  uint index, lane;
  Simdgroup* simdgroup;
  uint3 position_in_threadgroup, position_in_grid, group_in_grid;
  bool is_done;
  uint num_barriers, num_simd_barriers;
  uint ordered_by;  // the number, from 1, of the last barrier that made threadgroup memory visible
};

inline Thread threads[MAX_THREADS];
inline Simdgroup simdgroups[MAX_THREADS / LANES];
inline Meeting everyone;
inline uint num_threads, now, num_idle_turns;
inline ucontext_t outside;
inline uint64_t group_number;  // of all threadgroups that ever ran, from 1
inline char trouble[400];      // why the run was given up; empty while all is well
inline void (*body)(const Thread&);
inline char* stacks;

[[noreturn]] inline void give_up() {
  setcontext(&outside);
  abort();
}

inline void give_way() {
  const uint before = now;
  do {
    now = (now + 1) % num_threads;
  } while (threads[now].is_done && now != before);
  if (now != before) swapcontext(&threads[before].context, &threads[now].context);
}

inline void close_if_complete(Meeting& meeting) {
  if (meeting.come == meeting.expected) {
    meeting.come = 0;
    ++meeting.number;
    num_idle_turns = 0;
  }
}

inline void meet(Meeting& meeting) {
  const uint number = meeting.number;
  ++meeting.come;
  close_if_complete(meeting);
  while (meeting.number == number) {
    if (++num_idle_turns > 4 * num_threads) {
      snprintf(trouble, sizeof trouble,
               "threads wait at a barrier or a simd function for others that never come");
      give_up();
    }
    give_way();
  }
}

inline void leave(Meeting& meeting) {
  --meeting.expected;
  close_if_complete(meeting);
}

inline void run_thread() {
  Thread& self = threads[now];
  body(self);
  self.is_done = true;
  num_idle_turns = 0;
  leave(self.simdgroup->meeting);
  leave(everyone);
  if (everyone.expected == 0) setcontext(&outside);
  give_way();
}

// What lane i brought to the meeting that has just ended, if it came.
template <typename T>
struct Seen {
  const Simdgroup& simdgroup;
  uint number;
  bool has(uint lane) const { return lane < LANES && simdgroup.at[number % 2][lane] == number + 1; }
  T operator[](uint lane) const {
    T value;
    memcpy((void*)&value, &simdgroup.brought[number % 2][lane], sizeof(T));
    return value;
  }
};

template <typename T>
Seen<T> exchange(T value) {
  Thread& self = threads[now];
  Simdgroup& simdgroup = *self.simdgroup;
  const uint number = simdgroup.meeting.number;
  memcpy(&simdgroup.brought[number % 2][self.lane], &value, sizeof(T));
  simdgroup.at[number % 2][self.lane] = number + 1;
  meet(simdgroup.meeting);
  return {simdgroup, number};
}

template <typename T, typename Join>
T fold(T value, Join join) {
  const Seen<T> seen = exchange(value);
  T result = value;
  bool is_first = true;
  for (uint lane = 0; lane < LANES; ++lane) {
    if (!seen.has(lane)) continue;
    result = is_first ? seen[lane] : join(result, seen[lane]);
    is_first = false;
  }
  return result;
}

// As Metal's dispatchThreads: threadgroups at the edge of the grid are smaller.
inline void run_threadgroup(uint3 group, const uint* grid, const uint* size) {
  const uint3 first = {group.x * size[0], group.y * size[1], group.z * size[2]};
  const uint width = size[0] < grid[0] - first.x ? size[0] : grid[0] - first.x;
  const uint height = size[1] < grid[1] - first.y ? size[1] : grid[1] - first.y;
  const uint depth = size[2] < grid[2] - first.z ? size[2] : grid[2] - first.z;
  num_threads = width * height * depth;
  num_idle_turns = 0;
  ++group_number;
  everyone = {num_threads};
  memset(simdgroups, 0, sizeof simdgroups);
  for (uint i = 0; i < num_threads; ++i) {
    Thread& thread = threads[i];
    const uint3 place = {i % width, i / width % height, i / width / height};
    thread.index = i;
    thread.lane = i % LANES;
    thread.simdgroup = &simdgroups[i / LANES];
    thread.simdgroup->meeting.expected += 1;
    thread.position_in_threadgroup = place;
    thread.position_in_grid = {first.x + place.x, first.y + place.y, first.z + place.z};
    thread.group_in_grid = group;
    thread.is_done = false;
    thread.num_barriers = thread.num_simd_barriers = thread.ordered_by = 0;
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = stacks + size_t(i) * STACK_BYTES;
    thread.context.uc_stack.ss_size = STACK_BYTES;
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, run_thread, 0);
  }
  now = 0;
  swapcontext(&outside, &threads[0].context);
}

// Empty when all is well, else what went wrong.
inline const char* run_grid(const uint* grid, const uint* size, void (*kernel)(const Thread&)) {
  body = kernel;
  trouble[0] = 0;
  stacks = static_cast<char*>(malloc(size_t(MAX_THREADS) * STACK_BYTES));
  for (uint z = 0; z * size[2] < grid[2]; ++z)
    for (uint y = 0; y * size[1] < grid[1]; ++y)
      for (uint x = 0; x * size[0] < grid[0] && !*trouble; ++x) run_threadgroup({x, y, z}, grid, size);
  free(stacks);
  return trouble;
}

}  // namespace emulated

#include "metal_memory.h"

// --- functions ---

// A kernel is compiled inside this namespace, so that its `exp` is this one and not the C library's.

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
inline bool is_for_threadgroup(mem_flags flags) { return int(flags) & int(mem_flags::mem_threadgroup); }

inline void threadgroup_barrier(mem_flags flags) {
  emulated::meet(emulated::everyone);
  emulated::Thread& self = emulated::threads[emulated::now];
  ++self.num_barriers;
  if (is_for_threadgroup(flags)) self.ordered_by = self.num_barriers;
}
inline void simdgroup_barrier(mem_flags flags) {
  emulated::Thread& self = emulated::threads[emulated::now];
  emulated::meet(self.simdgroup->meeting);
  if (is_for_threadgroup(flags)) ++self.num_simd_barriers;
}

template <typename T>
emulated::Plain<T> simd_sum(T value) {
  using P = emulated::Plain<T>;
  return emulated::fold(P(value), [](P a, P b) { return P(a + b); });
}
template <typename T>
emulated::Plain<T> simd_product(T value) {
  using P = emulated::Plain<T>;
  return emulated::fold(P(value), [](P a, P b) { return P(a * b); });
}
template <typename T>
emulated::Plain<T> simd_max(T value) {
  using P = emulated::Plain<T>;
  return emulated::fold(P(value), [](P a, P b) { return a < b ? b : a; });
}
template <typename T>
emulated::Plain<T> simd_min(T value) {
  using P = emulated::Plain<T>;
  return emulated::fold(P(value), [](P a, P b) { return b < a ? b : a; });
}
// What comes from a lane that is not there is undefined; here it is the lane's own value.
template <typename T>
emulated::Plain<T> simd_shuffle(T value, uint lane) {
  const emulated::Plain<T> mine = value;
  const auto seen = emulated::exchange(mine);
  return seen.has(lane) ? seen[lane] : mine;
}
template <typename T>
emulated::Plain<T> simd_broadcast(T value, uint lane) {
  return simd_shuffle(value, lane);
}
template <typename T>
emulated::Plain<T> simd_shuffle_xor(T value, uint mask) {
  return simd_shuffle(value, emulated::threads[emulated::now].lane ^ mask);
}
template <typename T>
emulated::Plain<T> simd_shuffle_down(T value, uint delta) {
  return simd_shuffle(value, emulated::threads[emulated::now].lane + delta);
}
template <typename T>
emulated::Plain<T> simd_shuffle_up(T value, uint delta) {
  return simd_shuffle(value, emulated::threads[emulated::now].lane - delta);
}

// Two types where an operand is an element of threadgroup memory: it is read as what it holds.
template <typename T, typename U>
concept Alike = std::is_same_v<emulated::Plain<T>, emulated::Plain<U>>;
template <typename T, Alike<T> U>
emulated::Plain<T> max(T first, U second) {
  const emulated::Plain<T> a = first, b = second;
  return a < b ? b : a;
}
template <typename T, Alike<T> U>
emulated::Plain<T> min(T first, U second) {
  const emulated::Plain<T> a = first, b = second;
  return b < a ? b : a;
}
template <typename T, Alike<T> U, Alike<T> V>
emulated::Plain<T> clamp(T x, U low, V high) {
  return min(max(x, low), high);
}
inline float exp(float x) { return ::expf(x); }
inline float exp2(float x) { return ::exp2f(x); }
inline float log(float x) { return ::logf(x); }
inline float log2(float x) { return ::log2f(x); }
inline float sqrt(float x) { return ::sqrtf(x); }
inline float rsqrt(float x) { return 1.0f / ::sqrtf(x); }
inline float abs(float x) { return ::fabsf(x); }
inline int abs(int x) { return x < 0 ? -x : x; }
inline float fabs(float x) { return ::fabsf(x); }
inline float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
namespace fast {
using metal::exp;
using metal::exp2;
using metal::log;
using metal::max;
using metal::min;
using metal::rsqrt;
using metal::sqrt;
}  // namespace fast
namespace precise = fast;

}  // namespace metal

template <typename To, typename From>
To as_type(From given) {
  const emulated::Plain<From> from = given;
  static_assert(sizeof(To) == sizeof(from));
  To to;
  memcpy((void*)&to, (const void*)&from, sizeof(To));
  return to;
}

// --- words ---

// Pointers into device memory and declarations of threadgroup memory were replaced before (metal_source.py);
// elsewhere the address space is the compiler's business on a GPU only.
#define device
#define constant
#define thread
#define threadgroup
