// The rows of x as a product wants them: floats, bfloat16 or integers, in the order of the matrix's units.
#pragma once

#include "weights.h"

namespace tiny_llm::TINY_ISA {

/// The activations of one call.
struct Activations {
  const uint32_t* words;  // [M, stride]: of each unit its vectors' words; zeros behind the row's end
  const float* scales;    // [M, groups, kActs]: of integers
  const float* sums;      // [M, groups]: the sum of each group, which its bias multiplies
  int64_t rows, stride, groups;
};

/// kWidth elements, in the lower bits of the lanes.
inline void store_elements(float* to, IntVec lanes) { store(to, reinterpret_cast<Vec>(lanes)); }
inline void store_elements(int8_t* to, IntVec lanes) { store(to, lanes); }
template <class Half>
inline void store_elements(Half* to, IntVec lanes) {
  store_halves(to, reinterpret_cast<WordVec>(lanes));
}

/// Writes elements [count], one to a lane, in the order of a unit's vectors.
template <class Format>
inline void in_units(const int32_t* elements, int count, uint32_t* words) {
  constexpr int kUnit = Format::kUnit;
  auto* out = reinterpret_cast<typename Format::Element*>(words);
  for (int k = 0; k < count; k += kWidth) {
    IntVec lanes;
    if constexpr (kUnit <= kWidth) {
      std::memcpy(&lanes, elements + k, sizeof(lanes));
      lanes = arranged(lanes, [](int i) { return i / kUnit * kUnit + Format::element_at(i % kUnit); });
    } else {
      for (int i = 0; i < kWidth; ++i)
        lanes[i] = elements[k / kUnit * kUnit + Format::element_at((k + i) % kUnit)];
    }
    store_elements(out + k, lanes);
  }
}

/// Lays out a group of a row of x, and returns its sum. `scales` [kActs] are those of its integers.
template <class Format>
inline float lay_out(float* x, uint32_t* words, float* scales) {
  using Arithmetic = typename Format::Arithmetic;
  constexpr int kGroup = Format::kGroup, kAct = kGroup / Format::kActs;
  int32_t elements[kGroup];
  if constexpr (Arithmetic::kIsInteger) {
    for (int act = 0; act < Format::kActs; ++act)
      scales[act] = Arithmetic::to_integers(x + act * kAct, kAct, elements + act * kAct);
  } else {
    // bfloat16 is the upper half of a float.
    constexpr int kShift = 32 - 8 * sizeof(typename Format::Element);
    for (int k = 0; k < kGroup; k += kWidth) {
      Vec factor;
      for (int i = 0; i < kWidth; ++i) factor[i] = Format::factor((k + i) % Format::kUnit);
      store(elements + k, reinterpret_cast<IntVec>(as_words(load(x + k) * factor) >> kShift));
    }
  }
  in_units<Format>(elements, kGroup, words);
  Vec total{};
  for (int k = 0; k < kGroup; k += kWidth) total += load(x + k);
  return sum(total);
}

/// All rows of x, laid out in buffers of thread 0.
template <class Format>
Activations prepare(ThreadPool& threads, const Tensor& x) {
  int64_t columns = x.shape[1], groups = (columns + Format::kGroup - 1) / Format::kGroup;
  constexpr int64_t kGroupWords = Format::kGroup / Format::kPerLane;
  int64_t stride = groups * kGroupWords + 16, count = x.shape[0] * groups;
  // Rows a power of two apart would be mapped to the same sets of the cache.
  auto* words = buffer<uint32_t>(threads, 0, kValues, x.shape[0] * stride);
  float* sums = buffer<float>(threads, 0, kSums, count * (1 + Format::kActs));
  each_row(threads, x.shape[0], columns, [&](int, int64_t m) {
    float line[Format::kGroup];
    for (int64_t g = 0; g < groups; ++g) {
      int64_t first = g * Format::kGroup, left = std::min<int64_t>(Format::kGroup, columns - first);
      widen(x.data, x.dtype, m * x.stride[0] + first, left, Format::kGroup, line);
      int64_t at = m * groups + g;
      float* scales = sums + count + at * Format::kActs;
      sums[at] = lay_out<Format>(line, words + m * stride + g * kGroupWords, scales);
    }
  });
  return {words, sums + count, sums, x.shape[0], stride, groups};
}

}  // namespace tiny_llm::TINY_ISA
