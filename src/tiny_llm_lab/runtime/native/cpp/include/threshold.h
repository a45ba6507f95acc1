// Where the largest scores of a line end: by count, or by their share of the probability. Nothing is sorted
// but a few dozen numbers at the end.
#pragma once

#include <algorithm>
#include <functional>

#include "tiles.h"

namespace tiny_llm::TINY_ISA {

constexpr float kLowest = -1e37f;  // smaller numbers, minus infinity and NaN count as this one
constexpr int64_t kPiece = 64;     // vectors that have one maximum a lane
constexpr int kBuckets = 512;
constexpr float kNothing = 87.0f;  // a score so far below the peak weighs nothing, see `exp`
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

/// The smallest and the largest number of a line.
inline std::pair<float, float> range_of(const float* x, int64_t count) {
  Vec smallest = set(-kLowest), largest = set(kLowest);
  each_vector(x, count, [&](Vec value, int64_t, auto num) {
    if (num < kWidth) value = iota() < IntVec{} + int{num} ? value : set(value[0]);
    smallest = min(value, smallest), largest = max(value, largest);
  });
  return {-highest(-smallest), highest(largest)};
}

/// What `count` scores weigh, by their distance from the largest one. A score weighs e^(score - peak).
struct Histogram {
  double masses[kBuckets] = {}, total = 0;
  float largest, scale;

  /// Of each score. NaN, which is infinity times 0, is in the last bucket.
  IntVec bucket(Vec x) const {
    Vec place = min((set(largest) - x) * set(scale), set(kBuckets - 1.0f));
    return __builtin_convertvector(max(place, Vec{}), IntVec);
  }

  Histogram(const float* x, int64_t count, float smallest, float largest, float peak)
      : largest(largest), scale(kBuckets / std::min(largest - smallest, kNothing)) {
    constexpr int kCopies = 4;  // neighbours are often in one bucket, and would wait for each other
    double lanes[kCopies][kBuckets] = {};
    each_vector(x, count, [&](Vec score, int64_t, auto num) {
      int32_t places[kWidth];
      double weights[kWidth];
      store(places, bucket(score));
      auto wide = __builtin_convertvector(exp(score - set(peak)), DoubleVec);
      std::memcpy(weights, &wide, sizeof(wide));
      for (int lane = 0; lane < num; ++lane) lanes[lane % kCopies][places[lane]] += weights[lane];
    });
    for (int b = 0; b < kBuckets; ++b) {
      for (auto& copy : lanes) masses[b] += copy[b];
      total += masses[b];
    }
  }
};

/// The highest of `count` scores so that those that reach it weigh at least `share` of all; the smallest if
/// rounding leaves none. `room` has as many numbers and one more.
inline float nucleus_end(const float* x, int64_t count, float peak, double share, float* room) {
  constexpr int64_t kFew = 64;
  double target = 0;
  for (bool is_first = true; is_first || count > kFew; is_first = false) {
    auto [smallest, largest] = range_of(x, count);
    if (largest == smallest) return largest;
    Histogram h(x, count, smallest, largest, peak);
    if (is_first) target = share * h.total;
    int b = 0;
    for (; b < kBuckets - 1 && h.masses[b] < target; ++b) target -= h.masses[b];
    int64_t left = copy_if(x, count, [&](Vec v) { return h.bucket(v) == IntVec{} + b; }, room);
    x = room;
    if (std::exchange(count, left) == left) break;  // differences too small for `scale`
  }
  std::sort(room, room + count, std::greater<>());
  int64_t last = 0;
  while (last < count - 1 && (target -= exp(set(room[last] - peak))[0]) > 0) ++last;
  return room[last];
}

}  // namespace tiny_llm::TINY_ISA
