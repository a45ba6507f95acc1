// What the fuzz driver is made of: arrays in buffers of exactly their size, a strict thread pool, a
// double-precision judge.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels.h"
#include "thread_pool.h"

namespace fuzz {

using namespace tiny_llm;

inline std::mt19937_64 random_bits;

inline int64_t whole(int64_t low, int64_t high) {
  return low + int64_t(random_bits() % uint64_t(high - low + 1));
}
inline bool one_in(int n) { return whole(1, n) == 1; }
inline double real() { return double(int64_t(random_bits())) * 0x1p-63; }  // -1 to 1
template <class T>
T one_of(std::initializer_list<T> choices) {
  return choices.begin()[whole(0, int64_t(choices.size()) - 1)];
}
inline DType any_dtype() { return one_of({DType::f32, DType::f16, DType::bf16}); }

inline int bytes_of(DType dtype) {
  return dtype == DType::i8 ? 1 : dtype == DType::f16 || dtype == DType::bf16 ? 2 : 4;
}
/// Half the distance of neighbouring numbers of size one.
inline double unit(DType dtype) {
  return dtype == DType::f32 ? 0x1p-24 : dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
}
inline double smallest(DType dtype) { return dtype == DType::f16 ? 0x1p-25 : 0x1p-130; }
inline double largest(DType dtype) { return dtype == DType::f16 ? 65504.0 : 3.38e38; }

/// Written apart from simd.h's, from the definition of the formats.
inline double decode(const void* at, DType dtype) {
  if (dtype == DType::f32) return *static_cast<const float*>(at);
  if (dtype == DType::i8) return *static_cast<const int8_t*>(at);
  uint16_t bits = *static_cast<const uint16_t*>(at);
  if (dtype == DType::bf16) return std::bit_cast<float>(uint32_t(bits) << 16);
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                : exponent     ? std::ldexp(1024 + fraction, exponent - 25)
                               : std::ldexp(fraction, -24);
  return bits & 0x8000 ? -size : size;
}

/// The nearest 16-bit number, ties to even, by trying the neighbours of a truncated guess.
inline uint16_t encode16(double x, DType dtype) {
  if (std::isnan(x)) return dtype == DType::f16 ? 0x7e00 : 0x7fc0;
  uint16_t sign = std::signbit(x) ? 0x8000 : 0, low = 0, high = dtype == DType::f16 ? 0x7c00 : 0x7f80;
  double size = std::fabs(x), top = dtype == DType::f16 ? 65520.0 : std::ldexp(511, 119);
  if (size >= top) return sign | high;
  for (--high; low < high;) {  // the largest that is not above
    uint16_t middle = (low + high + 1) / 2;
    if (decode(&middle, dtype) <= size)
      low = middle;
    else
      high = middle - 1;
  }
  uint16_t above = low + 1;
  double below = size - decode(&low, dtype), over = decode(&above, dtype) - size;
  return sign | (std::isinf(over) || below < over || (below == over && low % 2 == 0) ? low : above);
}

inline void encode(void* at, DType dtype, double x) {
  if (dtype == DType::f32)
    *static_cast<float*>(at) = static_cast<float>(x);
  else
    *static_cast<uint16_t*>(at) = encode16(x, dtype);
}

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Memory = std::unique_ptr<void, Free>;

/// Exactly `bytes`, so that the address sanitizer sees the first byte too many; full of NaN.
inline Memory exactly(size_t bytes) {
  Memory memory(std::malloc(bytes));
  std::memset(memory.get(), 0xff, bytes);
  return memory;
}

/// A tensor that owns its memory. What lies between its rows is NaN.
struct Array {
  Tensor t;
  Memory memory;

  void* at(int64_t a, int64_t b = 0, int64_t c = 0, int64_t d = 0) const {
    int64_t index = a * t.stride[0] + b * t.stride[1] + c * t.stride[2] + d * t.stride[3];
    return static_cast<char*>(t.data) + index * bytes_of(t.dtype);
  }
  template <class... Index>
  double operator()(Index... index) const {
    return decode(at(index...), t.dtype);
  }
};

/// Rows are whole; unless `packed`, the other dimensions stand in any order, with gaps, and some repeat.
inline Array empty(DType dtype, std::vector<int64_t> shape, bool packed = true) {
  Array out;
  out.t.dtype = dtype;
  out.t.ndim = int(shape.size());
  std::vector<int> order;
  for (int i = 0; i < out.t.ndim; ++i) out.t.shape[i] = shape[i], order.insert(order.begin(), i);
  if (!packed) std::shuffle(order.begin() + 1, order.end(), random_bits);
  int64_t step = 1, extent = 1;
  for (int dim : order) {
    bool repeats = !packed && dim != order[0] && one_in(8);
    out.t.stride[dim] = repeats ? 0 : step;
    extent += (shape[dim] - 1) * out.t.stride[dim];
    if (!repeats) step = extent + (packed || one_in(2) ? 0 : whole(0, 9));
    if (packed) step = out.t.stride[dim] * shape[dim];
  }
  out.memory = exactly(extent * bytes_of(dtype));
  out.t.data = out.memory.get();
  return out;
}

/// Call use(a, b, c, d) for every index.
template <class Use>
void each(const Tensor& t, const Use& use) {
  int64_t n[4] = {1, 1, 1, 1};
  for (int i = 0; i < t.ndim; ++i) n[i] = t.shape[i];
  for (int64_t a = 0; a < n[0]; ++a)
    for (int64_t b = 0; b < n[1]; ++b)
      for (int64_t c = 0; c < n[2]; ++c)
        for (int64_t d = 0; d < n[3]; ++d) use(a, b, c, d);
}

inline Array filled(DType dtype, std::vector<int64_t> shape, double size = 1.0, bool packed = true) {
  Array out = empty(dtype, std::move(shape), packed);
  each(out.t, [&](auto... index) { encode(out.at(index...), dtype, real() * size); });
  return out;
}

/// A power of two that leaves float16 its range.
inline double any_size(DType dtype) {
  return std::ldexp(1.0, int(dtype == DType::f16 ? whole(-6, 2) : whole(-40, 40)));
}

/// Every request gets new memory of its exact size, full of NaN, and ends what the slot gave before.
/// All threads work, one after the other, the caller last.
class StrictPool : public ThreadPool {
 public:
  explicit StrictPool(int size) : size_(size) {}
  int size() const override { return size_; }
  void* scratch(int id, int slot, size_t bytes) override {
    void* data = nullptr;
    if (posix_memalign(&data, 64, bytes) != 0) throw std::bad_alloc();
    std::memset(data, 0xff, bytes);
    slots_[{id, slot}].reset(data);
    return data;
  }

 protected:
  void start(void (*body)(void*, int), void* context) override {
    for (int id = size_ - 1; id >= 0; --id) body(context, id);
  }
  void reset() override { next_ = 0; }
  int64_t take() override { return next_++; }

 private:
  int size_;
  int64_t next_ = 0;
  std::map<std::pair<int, int>, Memory> slots_;
};

/// Counts calls and the worst error, as a part of what is allowed; ends the program at the first above 1.
struct Judge {
  std::string operation;
  DType dtype = DType::f32;
  std::map<std::string, std::pair<int64_t, double>> seen;

  void begin(const char* name, DType type) {
    static const char* names[] = {"f32", "f16", "bf16"};
    operation = std::string(name) + " " + names[int(type)], dtype = type;
    ++seen[operation].first;
  }

  /// `size` bounds what was added up, of which float32 may lose 1e-6 (8 units in the last place).
  void check(double got, double want, double size, const char* where) {
    if (std::fabs(want) > largest(dtype)) return;
    double allowed = std::fabs(want) * unit(dtype) + smallest(dtype) + 1e-6 * size;
    double error = got == want ? 0.0 : std::fabs(got - want) / allowed;
    auto& worst = seen[operation].second;
    worst = std::max(worst, error);
    if (!(error <= 1.0)) fail(got, want, where);
  }

  void equal(double got, double want, const char* where) {
    if (got != want && !(std::isnan(got) && std::isnan(want))) fail(got, want, where);
  }

  [[noreturn]] void fail(double got, double want, const char* where) {
    std::printf("WRONG: %s %s: got %.9g, expected %.9g\n", operation.c_str(), where, got, want);
    std::exit(1);
  }
};

inline const Kernels& kernels = *tiny_llm_kernels();
inline Judge judge;

}  // namespace fuzz
