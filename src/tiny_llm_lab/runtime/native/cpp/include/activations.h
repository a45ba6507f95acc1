// The rows of x as a product wants them: floats, bfloat16 or integers, in the order of the matrix's vectors.
#pragma once

#include <cmath>
#include <limits>

#include "tiles.h"
#include "weights.h"

namespace tiny_llm::TINY_ISA {

/// The activations of one call.
struct Activations {
  const float* values;  // [M, stride]: `spans` spans, what lies behind the row's end as zeros
  const float* sums;    // [M, groups]: the sum of each group, which its bias multiplies
  int64_t rows, spans, stride, groups;
};

/// A span of x as integers. Each group has its own scale, so that a number is off by at most 2^-16 of its
/// group's largest: what bfloat16 and float16 results are rounded by is 128 and 16 times more.
template <class Rows>
inline void to_fixed(float* plain, float* scales, float* out) {
  constexpr int kPiece = std::min(Rows::kGroup, Rows::kSpan);
  using Integer = typename Rows::Arithmetic::Element;
  Integer integers[Rows::kSpan];
  for (int first = 0; first < Rows::kSpan; first += kPiece) {
    // The inverse of a subnormal scale could be infinite: numbers that small count as zeros.
    float scale = *scales++, inverse = scale >= std::numeric_limits<float>::min() ? 1.0f / scale : 0.0f;
    for (int k = first; k < first + kPiece; k += kWidth) {
      // Adding 1.5 * 2^23 leaves the rounded integer in the lowest bits.
      Vec shifted = load(plain + k) * set(inverse) + set(12582912.0f);
      store(plain + k, (shifted - set(12582912.0f)) * set(scale));
      IntVec whole = as_ints(shifted) - 0x4b400000;
      for (int i = 0; i < kWidth; ++i) integers[Rows::place(k + i)] = static_cast<Integer>(whole[i]);
    }
  }
  std::memcpy(out, integers, sizeof(integers));
}

/// A float that is a bfloat16, as such.
inline uint16_t upper_half(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(x));
  return static_cast<uint16_t>(bits >> 16);
}

/// Lay out one row of x, and sum up its groups. `scales` [groups] is room for those of integers.
template <class Rows>
void prepare_row(const Tensor& x, int64_t row, float* values, float* sums, float* scales, int64_t spans) {
  using Element = typename Rows::Arithmetic::Element;
  constexpr bool kIsFixed = Rows::Arithmetic::kIsFixed;
  int64_t columns = x.shape[1];
  float plain[Rows::kSpan];
  auto read = [&](int64_t span) {
    int64_t first = span * Rows::kSpan, left = std::min<int64_t>(Rows::kSpan, columns - first);
    widen(x.data, x.dtype, row * x.stride[0] + first, left, Rows::kSpan, plain);
  };
  if constexpr (kIsFixed) {
    for (int64_t span = 0; span < spans; ++span) {
      read(span);
      for (int first = 0; first < Rows::kSpan; first += std::min(Rows::kGroup, Rows::kSpan)) {
        Vec largest{};
        for (int k = first; k < first + std::min(Rows::kGroup, Rows::kSpan); k += kWidth)
          largest = max(largest, max(load(plain + k), -load(plain + k)));
        int64_t position = span * Rows::kSpan + first, group = position / Rows::kGroup;
        float scale = highest(largest) / static_cast<float>(std::numeric_limits<Element>::max());
        scales[group] = position % Rows::kGroup == 0 ? scale : std::max(scales[group], scale);
      }
    }
  }
  for (int64_t span = 0; span < spans; ++span, values += kPrepared<Rows>) {
    read(span);
    if constexpr (kIsFixed) {
      to_fixed<Rows>(plain, scales + span * Rows::kSpan / Rows::kGroup, values);
      store(values + Rows::kVectors * kWidth, Rows::of_lanes(span, scales));
    } else if constexpr (std::is_same_v<Element, bf16>) {
      uint16_t halves[Rows::kSpan];
#pragma GCC unroll 256
      for (int k = 0; k < Rows::kSpan; ++k) halves[Rows::place(k)] = upper_half(plain[k] * Rows::factor(k));
      std::memcpy(values, halves, sizeof(halves));
    } else {
#pragma GCC unroll 256
      for (int k = 0; k < Rows::kSpan; ++k) values[Rows::place(k)] = plain[k] * Rows::factor(k);
    }
    if constexpr (Rows::kGroup > 0) {
      constexpr int kPiece = std::min(Rows::kGroup, Rows::kSpan);
      for (int first = 0; first < Rows::kSpan; first += kPiece) {
        Vec total{};
        for (int k = first; k < first + kPiece; k += kWidth) total += load(plain + k);
        int64_t position = span * Rows::kSpan + first, group = position / Rows::kGroup;
        sums[group] = sum(total) + (position % Rows::kGroup == 0 ? 0.0f : sums[group]);
      }
    }
  }
}

/// All rows of x, laid out in buffers of thread 0.
template <class Rows>
Activations prepare(ThreadPool& threads, const Tensor& x) {
  int64_t spans = (x.shape[1] + Rows::kSpan - 1) / Rows::kSpan, groups = 0;
  if constexpr (Rows::kGroup > 0)
    groups = rounded_up((spans * Rows::kSpan + Rows::kGroup - 1) / Rows::kGroup, kWidth);
  // Rows a power of two apart would be mapped to the same sets of the cache.
  int64_t stride = spans * kPrepared<Rows> + 16;
  float* values = buffer<float>(threads, 0, kValues, x.shape[0] * stride);
  float* sums = buffer<float>(threads, 0, kSums, x.shape[0] * groups);
  threads.each(x.shape[0], [&](int id, int64_t m) {
    std::fill_n(sums + m * groups, groups, 0.0f);
    float* scales = buffer<float>(threads, id, kScales, groups + kWidth);
    prepare_row<Rows>(x, m, values + m * stride, sums + m * groups, scales, spans);
  });
  return {values, sums, x.shape[0], spans, stride, groups};
}

}  // namespace tiny_llm::TINY_ISA
