// A tile of a product: some rows of x times vectors of columns.
#pragma once

#include "columns.h"

namespace tiny_llm::TINY_ISA {

/// What a tile multiplies: `groups` groups of M rows of x and of N vectors of columns.
struct TileInput {
  const uint32_t* words;  // of x, one for each vector of a unit; row m begins m * `stride` further
  int64_t stride;
  const float *x_scales, *sums;  // of x, by group; row m begins m * `x_groups` groups further
  int64_t x_groups;
  // [blocks, panel_stride]: word i of a block is kBlockVectors vectors, which may begin at any address.
  const WordVec* panel;
  int64_t panel_stride;
  const Vec *scales, *biases;  // [blocks, x_groups * kBlockVectors]
  int64_t groups;
  int64_t ahead;  // bytes from the panel to what is prefetched, in order; 0: nothing is
};

/// Adds the products to totals [M, N], group by group: scale * (the sum over the kActs parts of a group of
/// x's scale * sum(weight * x)) + bias * sum(x). What has no scales has neither scales nor biases. G groups
/// are multiplied side by side, and added in their order. Returns the input of the last in.groups % G groups,
/// which it leaves. Format is a Packed or a Dense.
template <class Format, int M, int N, int G>
[[gnu::noinline]] TileInput multiply(TileInput in, Vec* totals) {
  // BEGIN task 2.3.3
  using Arithmetic = typename Format::Arithmetic;
  constexpr int kAct = Format::kGroup / Format::kActs, kParts = M * N * G, kWords = Format::kWords;
  constexpr int kGroupWords = Format::kGroup / Format::kPerWord * kBlockVectors;
  constexpr int kXWords = Format::kGroup / Format::kPerLane;
  auto at = [](int n, int64_t stride) { return n / kBlockVectors * stride + n % kBlockVectors; };
  const char* next = reinterpret_cast<const char*>(in.panel) + in.ahead;
  for (; in.groups >= G; in.groups -= G) {
    Vec sum[kParts];  // [M, G, N]
#pragma GCC unroll 4
    for (int act = 0; act < Format::kActs; ++act) {
      typename Arithmetic::Part part[kParts] = {};
#pragma GCC unroll 1
      for (int unit = 0; unit < kAct / Format::kUnit; ++unit, in.panel += kWords * kBlockVectors) {
        WordVec words[G * N][kWords];
#pragma GCC unroll 8
        for (int i = 0; i < G * N * kWords; ++i) {
          int n = i / kWords % N, w = i % kWords;
          // As bytes: a matrix may begin anywhere, and Clang would take a WordVec for aligned.
          auto* word = reinterpret_cast<const char*>(in.panel + i / kWords / N * kGroupWords +
                                                     at(n, in.panel_stride) + w * kBlockVectors);
          std::memcpy(&words[i / kWords][w], word, sizeof(WordVec));
          if (G > 1 || in.ahead != 0) __builtin_prefetch(next, 0, 2);
          next += sizeof(WordVec);
        }
#pragma GCC unroll 8
        for (int j = 0; j < Format::kVectors; ++j, ++in.words) {
          Vec weight[G * N];
#pragma GCC unroll 4
          for (int i = 0; i < G * N; ++i) {
            weight[i] = Format::vector(words[i], j);
            pin(weight[i]);  // decoded once, not for every row
          }
#pragma GCC unroll 16
          for (int i = 0; i < M * G; ++i) {
            Vec x = as_floats(every(in.words + i / G * in.stride + i % G * kXWords));
            pin(x);
#pragma GCC unroll 4
            for (int n = 0; n < N; ++n) {
              part[i * N + n] = Arithmetic::times_plus(weight[i % G * N + n], x, part[i * N + n]);
              pin(part[i * N + n]);
            }
          }
        }
      }
#pragma GCC unroll 32
      for (int i = 0; i < kParts; ++i) {
        Vec value = Arithmetic::value(part[i]);
        if constexpr (Arithmetic::kIsInteger) {
          int64_t group = i / N / G * in.x_groups + i / N % G;
          Vec scale = set(in.x_scales[group * Format::kActs + act]);
          sum[i] = act == 0 ? value * scale : fma(value, scale, sum[i]);
        } else {
          sum[i] = value;
        }
      }
    }
#pragma GCC unroll 32
    for (int i = 0; i < kParts; ++i) {
      int m = i / N / G, q = i / N % G, n = i % N;
      Vec total = totals[m * N + n];
      if constexpr (Format::kHasScales) {
        int64_t place = q * kBlockVectors + at(n, in.x_groups * kBlockVectors);
        total = fma(set(in.sums[m * in.x_groups + q]), in.biases[place], total);
        total = fma(sum[i], in.scales[place], total);
      } else {
        total += sum[i];
      }
      totals[m * N + n] = total;
    }
    asm("" ::: "memory");  // GCC would keep the totals in registers as well, which the sums need
    in.panel += (G - 1) * kGroupWords, in.words += (G - 1) * kXWords;
    in.x_scales += G * Format::kActs, in.sums += G;
    in.scales += G * kBlockVectors, in.biases += G * kBlockVectors;
  }
  return in;
  // END task 2.3.3
}

}  // namespace tiny_llm::TINY_ISA
