// Enough of Metal to compile a kernel's body as C++20 and to run it: what a course's kernel is likely to use.
//
// Scalars, uint2 and uint3, the math functions, simd_sum and its relatives, threadgroup memory and barriers.
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

// --- types ---

using uint = unsigned int;
using ushort = unsigned short;
using uchar = unsigned char;
struct uint2 {
  uint x, y;
};
struct uint3 {
  uint x, y, z;
};

// A 16-bit float. It widens by itself and narrows only when told to; two of them give one of them, rounded.
template <typename Format>
struct Narrow {
  uint16_t bits;
  Narrow() = default;
  explicit Narrow(float wide) : bits(Format::encode(wide)) {}
  explicit Narrow(double wide) : Narrow(float(wide)) {}
  explicit Narrow(int wide) : Narrow(float(wide)) {}
  explicit Narrow(uint wide) : Narrow(float(wide)) {}
  template <typename Other>
  explicit Narrow(Narrow<Other> other) : Narrow(float(other)) {}
  operator float() const { return Format::decode(bits); }
  friend Narrow operator+(Narrow a, Narrow b) { return Narrow(float(a) + float(b)); }
  friend Narrow operator-(Narrow a, Narrow b) { return Narrow(float(a) - float(b)); }
  friend Narrow operator*(Narrow a, Narrow b) { return Narrow(float(a) * float(b)); }
  friend Narrow operator/(Narrow a, Narrow b) { return Narrow(float(a) / float(b)); }
  Narrow& operator+=(Narrow other) { return *this = *this + other; }
  Narrow& operator-=(Narrow other) { return *this = *this - other; }
  Narrow& operator*=(Narrow other) { return *this = *this * other; }
  Narrow& operator/=(Narrow other) { return *this = *this / other; }
};

struct Float16 {
  static uint16_t encode(float wide) {
    const uint16_t sign = signbit(wide) ? 0x8000 : 0;
    if (isnan(wide)) return 0x7e00;
    const float size = fabsf(wide);
    if (size >= 65520.0f) return sign | 0x7c00;
    int exponent;
    frexpf(size, &exponent);
    if (size < 0x1p-14f) exponent = -13;  // down here all numbers have the same spacing
    // Rounding up to 2048 carries into the exponent by itself.
    return sign | uint16_t(int(rintf(ldexpf(size, 11 - exponent))) + ((exponent + 13) << 10));
  }
  static float decode(uint16_t bits) {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const float size = exponent == 31 ? (mantissa ? NAN : INFINITY)
        : exponent == 0               ? ldexpf(float(mantissa), -24)
                                      : ldexpf(float(1024 + mantissa), exponent - 25);
    return bits & 0x8000 ? -size : size;
  }
};

struct BFloat16 {
  static uint16_t encode(float wide) {
    uint32_t bits;
    memcpy(&bits, &wide, 4);
    if (isnan(wide)) return 0x7fc0;
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // to the nearest, ties to even
  }
  static float decode(uint16_t narrow) {
    const uint32_t bits = uint32_t(narrow) << 16;
    float wide;
    memcpy(&wide, &bits, 4);
    return wide;
  }
};

using half = Narrow<Float16>;
using bfloat = Narrow<BFloat16>;
using float16_t = half;
using bfloat16_t = bfloat;

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
};

inline Thread threads[MAX_THREADS];
inline Simdgroup simdgroups[MAX_THREADS / LANES];
inline Meeting everyone;
inline uint num_threads, now, num_idle_turns;
inline ucontext_t outside;
inline char trouble[200];  // why the run was given up; empty while all is well
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
      snprintf(trouble, sizeof trouble, "threads wait at a barrier or a simd function for others that never come");
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

// An array that complains where a GPU would read or write something else.
template <typename T>
struct Array {
  T* first;
  long long size;  // of what is left from `first` on
  const char* name;
  template <typename Index>
  T& operator[](Index i) const {
    if ((long long)i < 0 || (long long)i >= size) {
      snprintf(trouble, sizeof trouble, "%s[%lld] is outside: there are %lld elements", name, (long long)i, size);
      give_up();
    }
    return first[i];
  }
  T& operator*() const { return (*this)[0]; }
  template <typename Index>
  Array operator+(Index i) const {
    return {first + i, size - (long long)i, name};
  }
};

// Small inputs lie in `constant` memory, which no `device` pointer can point into; all others may become one.
template <typename T>
struct DeviceArray : Array<T> {
  operator T*() const { return this->first; }
};

}  // namespace emulated

// --- functions ---

// A kernel is compiled inside this namespace, so that its `exp` is this one and not the C library's.

namespace metal {

enum class mem_flags { mem_none, mem_device, mem_threadgroup };

inline void threadgroup_barrier(mem_flags) { emulated::meet(emulated::everyone); }
inline void simdgroup_barrier(mem_flags) { emulated::meet(emulated::threads[emulated::now].simdgroup->meeting); }

template <typename T>
T simd_sum(T value) {
  return emulated::fold(value, [](T a, T b) { return T(a + b); });
}
template <typename T>
T simd_product(T value) {
  return emulated::fold(value, [](T a, T b) { return T(a * b); });
}
template <typename T>
T simd_max(T value) {
  return emulated::fold(value, [](T a, T b) { return a < b ? b : a; });
}
template <typename T>
T simd_min(T value) {
  return emulated::fold(value, [](T a, T b) { return b < a ? b : a; });
}
// What comes from a lane that is not there is undefined; here it is the lane's own value.
template <typename T>
T simd_shuffle(T value, uint lane) {
  const auto seen = emulated::exchange(value);
  return seen.has(lane) ? seen[lane] : value;
}
template <typename T>
T simd_broadcast(T value, uint lane) {
  return simd_shuffle(value, lane);
}
template <typename T>
T simd_shuffle_xor(T value, uint mask) {
  return simd_shuffle(value, emulated::threads[emulated::now].lane ^ mask);
}
template <typename T>
T simd_shuffle_down(T value, uint delta) {
  return simd_shuffle(value, emulated::threads[emulated::now].lane + delta);
}
template <typename T>
T simd_shuffle_up(T value, uint delta) {
  return simd_shuffle(value, emulated::threads[emulated::now].lane - delta);
}

template <typename T>
T max(T a, T b) {
  return a < b ? b : a;
}
template <typename T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
T clamp(T x, T low, T high) {
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
To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy((void*)&to, (const void*)&from, sizeof(To));
  return to;
}

// --- words ---

// One memory for all: where a pointer points to is the compiler's business on a GPU only. What a threadgroup
// shares is static, for threadgroups run one after the other.
#define device
#define constant
#define thread
#define threadgroup static
