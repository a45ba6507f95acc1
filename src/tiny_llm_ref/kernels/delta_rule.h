// The delta rule on a tile of a state: some columns of all rows, which stay in the first cache.
#pragma once

#include "tiles.h"

namespace tiny_llm::TINY_ISA {

constexpr int kVectors = 2;  // of a tile's row: with two sums of two kinds each, eight chains
constexpr int kColumns = kVectors * kWidth;

inline float dot(const float* a, const float* b, int64_t padded) {
  Vec total{};
  for (int64_t i = 0; i < padded; i += kWidth) total = fma(load(a + i), load(b + i), total);
  return sum(total);
}

inline void scale(float* x, float factor, int64_t padded) {
  for (int64_t i = 0; i < padded; i += kWidth) store(x + i, load(x + i) * set(factor));
}

/// One walk over a tile [rows, kColumns] of a state, whose rows are `step` floats apart: bring it up to date
/// with the token before, whose decay, key and correction are given, and multiply it with this token's key
/// and query.
template <bool kUpdates, bool kReads>
inline void walk(float* tile, int64_t step, int64_t rows, float decay, const float* old_key,
                 const Vec* correction, const float* key, const float* query, Vec* by_key, Vec* by_query) {
  Vec sums[2][2][kVectors] = {};  // of even and of odd rows
  auto at_row = [&](int64_t i, Vec(*sum)[kVectors]) {
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) {
      float* place = tile + i * step + j * kWidth;
      Vec state = load(place);
      if constexpr (kUpdates) {
        state = fma(set(old_key[i]), correction[j], state * set(decay));
        store(place, state);
      }
      if constexpr (kReads) {
        sum[0][j] = fma(state, set(key[i]), sum[0][j]);
        sum[1][j] = fma(state, set(query[i]), sum[1][j]);
      }
    }
  };
  int64_t i = 0;
  for (; i + 1 < rows; i += 2) at_row(i, sums[0]), at_row(i + 1, sums[1]);
  if (i < rows) at_row(i, sums[0]);
  for (int j = 0; j < kVectors && kReads; ++j)
    by_key[j] = sums[0][0][j] + sums[1][0][j], by_query[j] = sums[0][1][j] + sums[1][1][j];
}

/// What the tokens of a block do to every state of a key head.
struct Block {
  int64_t length, key_dim, padded;      // padded: from one row of keys or queries to the next
  const float *query, *key, *products;  // [length, padded], and key times query [length]
};

/// The delta rule on a tile: v [length, stride] becomes o in place.
///
/// With S before token t, S^T k and S^T q come from one walk, and what the token adds to S is part of its own
/// output: o = g S^T q + (k . q) u with u = beta (v - g S^T k). The walk for t + 1 then makes S <- g S + k
/// u^T.
inline void delta_rule(const Block& block, const float* decay, const float* beta, float* tile, int64_t step,
                       float* values, int64_t stride) {
  Vec correction[kVectors], by_key[kVectors], by_query[kVectors];
  for (int64_t t = 0; t < block.length; ++t) {
    const float *key = block.key + t * block.padded, *query = block.query + t * block.padded;
    if (t == 0)
      walk<false, true>(tile, step, block.key_dim, 0, nullptr, correction, key, query, by_key, by_query);
    else
      walk<true, true>(tile, step, block.key_dim, decay[t - 1], key - block.padded, correction, key, query,
                       by_key, by_query);
    for (int j = 0; j < kVectors; ++j) {
      float* place = values + t * stride + j * kWidth;
      Vec g = set(decay[t]);
      correction[j] = set(beta[t]) * (load(place) - g * by_key[j]);
      store(place, fma(set(block.products[t]), correction[j], g * by_query[j]));
    }
  }
  int64_t last = block.length - 1;
  walk<true, false>(tile, step, block.key_dim, decay[last], block.key + last * block.padded, correction,
                    nullptr, nullptr, by_key, by_query);
}

}  // namespace tiny_llm::TINY_ISA
