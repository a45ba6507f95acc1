// Where the largest numbers of a line end: by count, or by their share of the probability. Nothing is sorted but
// a few dozen numbers at the end.
#pragma once

#include <algorithm>
#include <functional>

#include "tiles.h"

namespace tiny_llm::TINY_ISA {

constexpr float kLowest = -1e37f;  // smaller numbers, minus infinity and NaN count as this one
constexpr int64_t kPiece = 64;     // vectors that have one maximum a lane
constexpr int kBuckets = 512;
typedef double DoubleVec __attribute__((vector_size(8 * TINY_WIDTH)));

inline Vec min(Vec a, Vec b) { return a < b ? a : b; }

/// Whether any lane is true.
inline bool any(IntVec lanes) {
#if defined(__AVX512F__) && TINY_WIDTH == 16
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(lanes), reinterpret_cast<__m512i>(lanes)) != 0;
#elif defined(__AVX2__) && TINY_WIDTH == 8
  return _mm256_movemask_ps(reinterpret_cast<__m256>(lanes)) != 0;
#else
  auto pairs = reinterpret_cast<PairVec>(lanes);
  uint64_t all = 0;
  for (int i = 0; i < kWidth / 2; ++i) all |= pairs[i];
  return all != 0;
#endif
}

/// One for every number: a threshold by count.
struct ByCount {
  float span = 2e37f;  // numbers further below the largest have no mass
  Vec operator()(Vec) const { return set(1.0f); }
};

/// A score's probability, times a factor that all of them have.
struct ByProbability {
  float peak, span = 87.0f;
  Vec operator()(Vec x) const { return exp(x - set(peak)); }
};

/// Calls use(vector, place, num_lanes) for `count` numbers.
template <class Use>
inline void each_vector(const float* x, int64_t count, const Use& use) {
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) use(load(x + i), i, std::integral_constant<int, kWidth>());
  if (i < count) use(load_part(x + i, count - i), i, static_cast<int>(count - i));
}

/// Copies the numbers that `keeps` to `out`, which may be `x` itself; returns how many. Writes one too much.
template <class Keeps>
inline int64_t copy_if(const float* x, int64_t count, const Keeps& keeps, float* out) {
  int64_t kept = 0;
  each_vector(x, count, [&](Vec value, int64_t, auto num) {
    IntVec verdict = keeps(value);
    if (!any(verdict)) return;
    float values[kWidth];
    int32_t verdicts[kWidth];
    store(values, value), store(verdicts, verdict);
    for (int lane = 0; lane < num; ++lane) {
      out[kept] = values[lane];
      kept += verdicts[lane] & 1;
    }
  });
  return kept;
}

/// A number that at least k of a line's reach, and few more: the k-th largest of its pieces' maxima.
inline float bound_of(const float* x, int64_t padded, int64_t k, float* maxima) {
  int64_t count = 0;
  for (int64_t first = 0; first < padded; first += kPiece * kWidth, count += kWidth) {
    Vec peak = set(kLowest);
    for (int64_t i = first; i < std::min(first + kPiece * kWidth, padded); i += kWidth)
      peak = max(load(x + i), peak);
    store(maxima + count, peak);
  }
  if (k >= count) return kLowest;
  std::nth_element(maxima, maxima + k - 1, maxima + count, std::greater<>());
  return maxima[k - 1];
}

inline std::pair<float, float> range_of(const float* x, int64_t count) {
  Vec smallest = set(-kLowest), largest = set(kLowest);
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth)
    smallest = min(load(x + i), smallest), largest = max(load(x + i), largest);
  std::pair<float, float> range(-highest(-smallest), highest(largest));
  for (; i < count; ++i) range = {std::min(range.first, x[i]), std::max(range.second, x[i])};
  return range;
}

/// The masses of `count` numbers by their distance from the largest one.
struct Histogram {
  double masses[kBuckets] = {};
  float largest, scale;

  WordVec bucket(Vec x) const {
    // NaN, of infinity times 0, is in the last bucket.
    Vec place = min((set(largest) - x) * set(scale), set(kBuckets - 1.0f));
    return reinterpret_cast<WordVec>(__builtin_convertvector(max(place, Vec{}), IntVec));
  }

  template <class Mass>
  Histogram(const float* x, int64_t count, float largest, float smallest, const Mass& mass)
      : largest(largest), scale(kBuckets / std::min(largest - smallest, mass.span)) {
    double lanes[kCopies][kBuckets] = {};
    each_vector(x, count, [&](Vec value, int64_t, auto num) {
      int32_t places[kWidth];
      double weights[kWidth];
      store(places, reinterpret_cast<IntVec>(bucket(value)));
      auto wide = __builtin_convertvector(mass(value), DoubleVec);
      std::memcpy(weights, &wide, sizeof(wide));
      for (int lane = 0; lane < num; ++lane) lanes[lane % kCopies][places[lane]] += weights[lane];
    });
    for (int b = 0; b < kBuckets; ++b)
      for (auto& copy : lanes) masses[b] += copy[b];
  }

 private:
  static constexpr int kCopies = 4;  // neighbours are often in one bucket, and would wait for each other
};

/// The highest of `count` numbers so that those that reach it have a mass of `target`, or, if `is_share`, that
/// share of all mass. The smallest number if all have less. `room` has as many numbers and a vector more.
template <class Mass>
inline float threshold_of(const float* x, int64_t count, const Mass& mass, double target, bool is_share,
                          float* room) {
  constexpr int64_t kFew = 64;
  while (true) {
    auto [smallest, largest] = range_of(x, count);
    if (count == 0 || largest == smallest) return largest;
    if (count <= kFew && !is_share) break;
    Histogram h(x, count, largest, smallest, mass);
    if (std::exchange(is_share, false)) {
      double all = 0;
      for (double each : h.masses) all += each;
      target *= all;
    }
    uint32_t b = 0;
    for (; b < kBuckets - 1 && h.masses[b] < target; ++b) target -= h.masses[b];
    int64_t left = copy_if(x, count, [&](Vec v) { return IntVec(h.bucket(v) == WordVec{} + b); }, room);
    bool is_less = left < count;
    x = room, count = left;
    if (!is_less) break;
  }
  if (x != room) std::copy_n(x, count, room);
  std::sort(room, room + count, std::greater<>());
  int64_t last = 0;
  for (; last < count - 1; ++last)
    if ((target -= mass(set(room[last]))[0]) <= 0) break;
  return room[last];
}

}  // namespace tiny_llm::TINY_ISA
