// Products of packed weights and bytes: how x is rounded, and a tile of the product.
#pragma once

#include "bytes.h"

namespace tiny_llm::TINY_ISA {

/// Rounds x [count] to whole numbers from -127 to 127, half to even, times a scale that it returns: max |x| /
/// 127. `bytes` gets the numbers in the order of `byte_at`, and x what they stand for. `count` is a multiple
/// of 8, and so of kWidth if that is 4. A scale below the smallest normal float makes all of them zeros.
inline float to_bytes(float* x, int count, int8_t* bytes) {
  // BEGIN task 2.3.5
  Vec largest{};
  for (int k = 0; k < count; k += kWidth) largest = max(largest, max(load(x + k), -load(x + k)));
  float scale = highest(largest) / 127.0f;
  float inverse = scale >= std::numeric_limits<float>::min() ? 1.0f / scale : 0.0f;
  for (int k = 0; k < count; k += kWidth) {
    // Adding 1.5 * 2^23 leaves the rounded integer in the lowest bits.
    Vec shifted = load(x + k) * set(inverse) + set(12582912.0f);
    store(x + k, (shifted - set(12582912.0f)) * set(scale));
    IntVec whole = as_ints(shifted);
    if constexpr (kWidth % 8 == 0) {  // a vector at once
      store(bytes + k, arranged(whole, [](int i) { return i / 8 * 8 + i % 4 * 2 + i % 8 / 4; }));
    } else {
      for (int i = 0; i < kWidth; ++i) bytes[(k + i) / 8 * 8 + byte_at((k + i) % 8)] = int8_t(whole[i]);
    }
  }
  return scale;
  // END task 2.3.5
}

/// What a tile multiplies: `groups` groups of M rows of x and of N vectors of columns.
struct ByteBlock {
  const uint32_t* words;  // of x; row m begins m * `stride` further
  int64_t stride;
  const float *x_scales, *sums;  // of x, by group; row m begins m * `x_groups` groups further
  int64_t x_groups;
  const WordVec* panel;        // [words, N]
  const Vec *scales, *biases;  // [groups, N]
  int64_t groups;
};

/// Adds the products of a block to totals [M, N], group by group: scale * (the sum over the kActs parts of a
/// group of x's scale * sum(weight * byte)) + bias * sum(x). Format is a PackedBytes.
template <class Format, int M, int N>
[[gnu::noinline]] void multiply_bytes(ByteBlock block, Vec* totals) {
  // BEGIN task 2.3.5
  for (int64_t g = 0; g < block.groups; ++g) {
    Vec sum[M][N];
#pragma GCC unroll 8
    for (int act = 0; act < Format::kActs; ++act) {
      IntVec part[M][N] = {};
#pragma GCC unroll 16
      for (int unit = 0; unit < Format::kAct / Format::kUnit; ++unit, block.panel += Format::kWords * N) {
        WordVec words[N][Format::kWords];
#pragma GCC unroll 8
        for (int i = 0; i < N * Format::kWords; ++i) words[i % N][i / N] = block.panel[i];
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j, ++block.words) {
          IntVec weight[N];
#pragma GCC unroll 4
          for (int n = 0; n < N; ++n) {
            weight[n] = Format::vector(words[n], j == 1);
            pin(weight[n]);  // decoded once, not for every row
          }
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) {
            IntVec x = reinterpret_cast<IntVec>(every(block.words + m * block.stride));
            pin(x);
#pragma GCC unroll 4
            for (int n = 0; n < N; ++n) {
              part[m][n] = Format::times_plus(weight[n], x, part[m][n]);
              pin(part[m][n]);
            }
          }
        }
      }
#pragma GCC unroll 32
      for (int i = 0; i < M * N; ++i) {
        int m = i / N, n = i % N;
        Vec scale = set(block.x_scales[m * block.x_groups * Format::kActs + act]);
        Vec value = Format::value(part[m][n]);
        sum[m][n] = act == 0 ? value * scale : fma(value, scale, sum[m][n]);
      }
    }
#pragma GCC unroll 32
    for (int i = 0; i < M * N; ++i) {
      int m = i / N, n = i % N;
      Vec total = fma(set(block.sums[m * block.x_groups]), block.biases[n], totals[i]);
      totals[i] = fma(sum[m][n], block.scales[n], total);
    }
    block.x_scales += Format::kActs, ++block.sums, block.scales += N, block.biases += N;
  }
  // END task 2.3.5
}

}  // namespace tiny_llm::TINY_ISA
