// How a block of stored keys or values is handed to what multiplies it: as it is stored, or decoded first.
#pragma once

#include "attention_items.h"
#include "quantized_rows.h"
#include "transpose.h"

namespace tiny_llm::TINY_ISA {

// Both stand in attention.cpp.
inline int64_t kv_offset(const Tensor& t, const Requests& requests, int64_t request, int64_t group,
                         int64_t token);
inline int64_t contiguous_tokens(const Tensor& t, const Requests& requests, int64_t token, int64_t count);

/// The element that an item reads after a token of a kv head: the next head's row, then the next block's.
inline int64_t next_kv_offset(const Tensor& t, const Requests& requests, const Item& item, int64_t group,
                              int64_t token) {
  bool is_last = group + 1 == item.group + item.num_groups;
  int64_t next = is_last && token + kBlock < requests.lengths[item.request] ? token + kBlock : token;
  return kv_offset(t, requests, item.request, is_last ? item.group : group + 1, next);
}

/// A row of queries from element `at` on, as it meets the keys: floats, or bfloat16 numbers as they are.
inline void lay_out_query(const Attention& a, int64_t at, float* out) {
  const Tensor& q = a.query;
  if (!a.is_paired()) return widen(q.data, q.dtype, at, q.shape[3], a.padded(), out);
  std::memset(out, 0, a.padded() * sizeof(bf16));
  std::memcpy(out, static_cast<const bf16*>(q.data) + at, q.shape[3] * sizeof(bf16));
}

/// Call use(at, i, run) for each contiguous run of `count` stored tokens from `first` on: of `run` tokens,
/// the first is number i, and its first element is number `at`.
template <class Use>
inline void each_run(const Tensor& t, const Requests& requests, const Item& item, int64_t group,
                     int64_t first, int64_t count, const Use& use) {
  for (int64_t i = 0, run; i < count; i += run) {
    run = contiguous_tokens(t, requests, first + i, count - i);
    use(kv_offset(t, requests, item.request, group, first + i), i, run);
  }
}

/// `count` stored tokens from `first` on as floats [kBlock, padded], with zeros behind them.
inline void widen_block(const Tensor& t, const Requests& requests, const Item& item, int64_t group,
                        int64_t first, int64_t count, int64_t padded, float* out) {
  each_run(t, requests, item, group, first, count, [&](int64_t at, int64_t i, int64_t run) {
    if (t.dtype != DType::i8) {
      for (int64_t j = 0; j < run; ++j)
        widen(t.data, t.dtype, at + j * t.stride[2], t.shape[3], padded, out + (i + j) * padded);
      return;
    }
    int64_t next = next_kv_offset(t, requests, item, group, first + i);
    auto* row = static_cast<const int8_t*>(t.data);
    const float* scale = t.scales + at / t.shape[3];
    for (int64_t j = 0; j < run; ++j) {
      prefetch(row + next + j * t.stride[2], t.shape[3]);
      scale_row(row + at + j * t.stride[2], scale[j], t.shape[3], padded, out + (i + j) * padded);
    }
  });
  std::fill_n(out + count * padded, (kBlock - count) * padded, 0.0f);
}

/// The same of numbers as they are.
template <class T>
inline void copy_block(const Tensor& t, const Requests& requests, const Item& item, int64_t group,
                       int64_t first, int64_t count, int64_t padded, T* out) {
  std::memset(static_cast<void*>(out), 0, kBlock * padded * sizeof(T));
  each_run(t, requests, item, group, first, count, [&](int64_t at, int64_t i, int64_t run) {
    for (int64_t j = 0; j < run; ++j)
      std::memcpy(out + (i + j) * padded, static_cast<const T*>(t.data) + at + j * t.stride[2],
                  t.shape[3] * sizeof(T));
  });
}

/// The scales of a block's rows, and zeros behind them.
inline void copy_scales(const Tensor& t, const Requests& requests, const Item& item, int64_t group,
                        int64_t first, int64_t count, float* out) {
  std::fill_n(out, kBlock, 0.0f);
  each_run(t, requests, item, group, first, count, [&](int64_t at, int64_t i, int64_t run) {
    std::copy_n(t.scales + at / t.shape[3], run, out + i);
  });
}

constexpr int kQuads = kWidth / 4;  // of a vector: four neighbouring lanes each

/// A vector of a row's words: floats, or pairs of bfloat16 numbers as they are.
template <class T>
inline Vec words_of(const T* row) {
  if constexpr (std::is_same_v<T, PairedInt8>)
    return narrowed(load(&row->number), load(&row[kWidth].number));
  else if constexpr (!kIsPaired<T>)
    return load(row);
  Vec words;
  std::memcpy(&words, row, sizeof(words));
  return words;
}

/// Lays out words w to w + kWidth - 1 of the keys s to s + kWidth - 1 of a run: lanes 4 q to 4 q + 3 of
/// vector i * kQuads + k are words w + 4 k to w + 4 k + 3 of key s + 4 q + i.
template <class T>
inline void lay_out_square(const KvRun<T>& run, int64_t s, int64_t w, Vec* square) {
  constexpr int kNumbers = kIsPaired<T> ? 2 : 1;  // of a word
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    Vec rows[kQuads];
#pragma GCC unroll 4
    for (int q = 0; q < kQuads; ++q) {
      int64_t at = (s + 4 * q + i) * run.stride + w * kNumbers;
      rows[q] = words_of(run.rows + at);
      pin(rows[q]);
    }
    transpose_quads(rows, square + i * kQuads);
  }
}

/// Keys of a block that were laid out before: [kBlock / kWidth, words / kWidth] squares.
template <bool kArePairs>
struct KeySquares {
  static constexpr bool kPaired = kArePairs, kIsLaidOut = true;
  const Vec* squares;
  int64_t words;
  const Vec* square(int64_t s, int64_t w, Vec*) const {
    return squares + (s / kWidth * words + w) / kWidth * kWidth;
  }
};

/// The keys of a run, which are laid out on the way.
template <class T>
struct KeyRows {
  static constexpr bool kPaired = kIsPaired<T>, kIsLaidOut = false;
  const KvRun<T>& run;
  /// The square of words from w on of keys from s on, in `room`, which has kWidth vectors.
  const Vec* square(int64_t s, int64_t w, Vec* room) const {
    lay_out_square(run, s, w, room);
    return room;
  }
};

/// The values of two tokens, a pair of bfloat16 numbers in a word.
struct ValuePair {
  uint32_t bits;
};

/// How many tokens a step of a product with weights takes.
template <class T>
constexpr int kTokensAStep = kIsPaired<T> || std::is_same_v<T, ValuePair> ? 2 : 1;

/// Vectors k to k + N - 1 of the values of a run's token s, or of tokens s and s + 1 in pairs.
template <int N, class T>
inline void load_values(const KvRun<T>& run, int64_t s, int64_t k, Vec* out) {
  if constexpr (kIsPaired<T>) {
#pragma GCC unroll 8
    for (int n = 0; n < N; n += 2) {
      const T *low = run.rows + s * run.stride + (k + n) * kWidth, *high = low + run.stride;
      interleave(words_of(low), words_of(high), out + n);
    }
  } else {
    const T* row = run.rows + s / kTokensAStep<T> * run.stride + k * kWidth;
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      if constexpr (std::is_same_v<T, ValuePair>)
        std::memcpy(out + n, row + n * kWidth, sizeof(Vec));
      else
        out[n] = load(row + n * kWidth);
    }
  }
}

/// The weight of token s of a block, or those of tokens s and s + 1 in a pair, in every lane.
template <class T>
inline Vec weight_of(const float* weights, int64_t s) {
  if constexpr (kTokensAStep<T> == 1) return set(weights[s]);
  return as_floats(every(reinterpret_cast<const uint32_t*>(weights) + s / 2));
}

/// sum + values * weight, of one token or of two.
template <class T>
inline Vec times_plus(Vec values, Vec weight, Vec sum) {
  return kTokensAStep<T> == 1 ? fma(weight, values, sum) : dot_bfloats(values, weight, sum);
}

/// A run's values, as they are, in pairs of tokens: rows of `padded` pairs.
template <class T>
inline void pair_up(const KvRun<T>& run, int64_t padded, ValuePair* out) {
  for (int64_t s = 0; s < run.count; s += 2)
    for (int64_t k = 0; k < padded; k += 2 * kWidth) {
      Vec pairs[2];
      load_values<2>(run, s, k / kWidth, pairs);
      std::memcpy(out + (run.first + s) / 2 * padded + k, pairs, sizeof(pairs));
    }
}

/// How many vectors of outputs a tile of some rows has.
constexpr int output_vectors(int rows) { return rows <= 2 ? std::max(4, kWidth / 2) : kSizes.output_vectors; }

/// Whether a block's values are read in the order of memory: one tile takes whole rows.
inline bool is_in_order(const Attention& a, const Tensor& t, const Item& item) {
  bool is_one_tile = item.num_tokens * item.num_heads <= 2 && a.padded() <= output_vectors(2) * kWidth;
  return &t == &a.value && is_one_tile;
}

/// Reads a word of every line of a run in the order of memory, which is what a core's own prefetching
/// follows.
template <class T>
inline void touch(const KvRun<T>& run, int64_t row) {
  for (int64_t i = 0; i < run.count; ++i)
    for (int64_t k = 0; k < row; k += 64 / sizeof(T))
      *reinterpret_cast<const volatile char*>(run.rows + i * run.stride + k);
}

constexpr int64_t kPiece = 16;  // tokens that are read before they are used: memory goes on meanwhile

/// Call use(run) for each contiguous piece of a whole block of a kv head.
template <class T, class Use>
void with_stored(const Attention& a, const Tensor& t, const Item& item, int64_t group, int64_t first,
                 const Use& use) {
  auto* data = static_cast<const T*>(t.data);
  // A function of its own: in one loop with what follows, GCC made decodes a fifth slower.
  auto use_piece = [&](int64_t at, int64_t i, int64_t run) {
    KvRun<T> rows{data + at, t.stride[2], i, run};
    if (!is_in_order(a, t, item)) touch(rows, t.shape[3]);
    if (a.requests.tables != nullptr) {
      const T* next = data + next_kv_offset(t, a.requests, item, group, first + i);
      for (int64_t j = 0; j < run; ++j) prefetch(next + j * t.stride[2], t.shape[3]);
    }
    use(rows);
  };
  each_run(t, a.requests, item, group, first, kBlock, [&](int64_t at, int64_t i, int64_t run) {
    for (int64_t j = 0; j < run; j += kPiece)
      use_piece(at + j * t.stride[2], i + j, std::min(kPiece, run - j));
  });
}

/// Call use(run) for each contiguous run of a block of a kv head. The rows stay in their dtype if they are
/// whole and serve few tiles, as decoding them in each tile is then cheaper than a store and a load.
/// Otherwise, and with 8 bits, the block is decoded into `floats` first.
template <class Use>
void with_block(const Attention& a, const Tensor& t, const Item& item, int64_t group, int64_t first,
                int64_t count, float* floats, const Use& use) {
  if (!item.is_few() || !a.is_whole(t, count) || t.dtype == DType::i8) {
    widen_block(t, a.requests, item, group, first, count, a.padded(), floats);
    return use(KvRun<float>{floats, a.padded(), 0, kBlock});
  }
  visit(t.dtype, [&](auto* type) {
    with_stored<std::remove_pointer_t<decltype(type)>>(a, t, item, group, first, use);
  });
}

/// The same, with numbers as they are: there is little to decode, however many tiles they serve. A block that
/// is not whole is copied into `room`.
template <class T, class Use>
void with_pairs_of(const Attention& a, const Tensor& t, const Item& item, int64_t group, int64_t first,
                   int64_t count, float* room, const Use& use) {
  if (a.is_whole(t, count)) return with_stored<T>(a, t, item, group, first, use);
  auto* copy = reinterpret_cast<T*>(room);
  copy_block(t, a.requests, item, group, first, count, a.padded(), copy);
  use(KvRun<T>{copy, a.padded(), 0, kBlock});
}

template <class Use>
void with_pairs(const Attention& a, const Tensor& t, const Item& item, int64_t group, int64_t first,
                int64_t count, float* room, const Use& use) {
  if (a.is_scaled()) return with_pairs_of<PairedInt8>(a, t, item, group, first, count, room, use);
  with_pairs_of<PairedBf16>(a, t, item, group, first, count, room, use);
}

/// Call use(keys, first, count) for tokens `first` to `first + count - 1` of a block: a run of them, for few
/// tiles of rows, or else the whole block, laid out in `rows.key`, behind what a block that is not whole
/// takes. `rows` gets the block's scales.
template <class Use>
void with_keys(const Attention& a, const Item& item, int64_t group, int64_t first, int64_t count,
               AttentionRows& rows, const Use& use) {
  float* room = rows.key;
  if (a.is_scaled()) {
    copy_scales(a.key, a.requests, item, group, first, count, rows.key_scales);
    copy_scales(a.value, a.requests, item, group, first, count, rows.value_scales);
  }
  auto* squares = reinterpret_cast<Vec*>(room + kBlock * a.padded());
  auto each = [&](const auto& run) {
    if (item.is_few())
      return use(KeyRows<std::remove_cvref_t<decltype(*run.rows)>>{run}, run.first, run.count);
    for (int64_t s = 0; s < run.count; s += kWidth)
      for (int64_t w = 0; w < a.words(); w += kWidth)
        lay_out_square(run, s, w, squares + ((run.first + s) / kWidth * a.words() + w) / kWidth * kWidth);
  };
  if constexpr (kMultipliesPairs)
    if (a.is_paired()) {
      with_pairs(a, a.key, item, group, first, count, room, each);
      if (!item.is_few()) use(KeySquares<true>{squares, a.words()}, 0, kBlock);
      return;
    }
  with_block(a, a.key, item, group, first, count, room, each);
  if (!item.is_few()) use(KeySquares<false>{squares, a.words()}, 0, kBlock);
}

/// The same for values. Where two of them are multiplied at once, they are those of two tokens: few tiles
/// pair them on the way, for others they are laid out in pairs first, behind a copy in `rows.value`.
template <class Use>
void with_values(const Attention& a, const Item& item, int64_t group, int64_t first, int64_t count,
                 AttentionRows& rows, const Use& use) {
  float* room = rows.value;
  if constexpr (kMultipliesPairs)
    if (a.is_paired()) {
      if (item.is_few()) return with_pairs(a, a.value, item, group, first, count, room, use);
      auto* pairs = reinterpret_cast<ValuePair*>(room + kBlock / 2 * a.padded());
      with_pairs(a, a.value, item, group, first, count, room,
                 [&](const auto& run) { pair_up(run, a.padded(), pairs); });
      return use(KvRun<ValuePair>{pairs, a.padded(), 0, kBlock});
    }
  with_block(a, a.value, item, group, first, count, room, use);
}

}  // namespace tiny_llm::TINY_ISA
