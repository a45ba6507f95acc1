// Attention over stored keys and values, a block of them at a time (FlashAttention-2, arXiv 2307.08691).
//
// The rows of one kv head (its query heads, several tokens) share every block, which is decoded to floats
// once. Blocks begin at multiples of kBlock whatever the chunk, so a token's result does not depend on which
// tokens are computed with it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attention_blocks.h"

namespace tiny_llm::TINY_ISA {

/// Returns the index of the first element of a stored token, for a request and a kv head, in key or value.
inline int64_t kv_offset(const Tensor& t, const Requests& requests, int64_t request, int64_t group,
                         int64_t token) {
  int64_t block = request, inside = token;
  if (requests.tables != nullptr) {
    // BEGIN task 3.2.3
    block = requests.tables[request * requests.width + token / t.shape[2]];
    inside = token % t.shape[2];
    // END task 3.2.3
  }
  return block * t.stride[0] + group * t.stride[1] + inside * t.stride[2];
}

/// Returns how many of a request's `count` stored tokens, starting at `token`, are contiguous, that is
/// t.stride[2] elements apart.
inline int64_t contiguous_tokens(const Tensor& t, const Requests& requests, int64_t token, int64_t count) {
  if (requests.tables == nullptr) return count;
  // BEGIN task 3.2.3
  return std::min(count, t.shape[2] - token % t.shape[2]);
  // END task 3.2.3
}

/// Computes the scores, not scaled, of M rows of queries, `stride` words apart, against the keys s to
/// s + kWidth - 1. Those of row m begin at scores[m] + place.
template <int M, class Keys>
void score_tile(const float* query, int64_t stride, int64_t words, const Keys& keys, int64_t s,
                float (*scores)[kBlock], int64_t place) {
  // BEGIN task 2.4.2
  Vec total[M][4] = {};
  for (int64_t w = 0; w < words; w += kWidth) {
    Vec room[kWidth];
    const Vec* square = keys.square(s, w, room);
#pragma GCC unroll 4
    for (int k = 0; k < kQuads; ++k) {
      Vec x[M];
#pragma GCC unroll 6
      for (int m = 0; m < M; ++m) x[m] = every_quad(query + m * stride + w + 4 * k);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        Vec key = square[i * kQuads + k];
#pragma GCC unroll 6
        for (int m = 0; m < M; ++m) {
          total[m][i] = Keys::kPaired ? dot_bfloats(key, x[m], total[m][i]) : fma(key, x[m], total[m][i]);
          pin(total[m][i]);
        }
      }
    }
  }
#pragma GCC unroll 6
  for (int m = 0; m < M; ++m)
    store(scores[m] + place, neighbours_added(neighbours_added(total[m][0], total[m][1]),
                                              neighbours_added(total[m][2], total[m][3])));
  // END task 2.4.2
}

/// The scores of rows `begin` to `end - 1` against `count` keys, which begin at key `first` of their block.
template <class Keys>
void score(AttentionRows& rows, int64_t begin, int64_t end, int64_t padded, int64_t words, const Keys& keys,
           int64_t first, int64_t count) {
  auto score_tiles = [&](auto height, int64_t r) {
    for (int64_t s = 0; s < count; s += kWidth)
      score_tile<height>(rows.query + r * padded, padded, words, keys, s, rows.scores + r, first + s);
  };
  in_tiles<Keys::kIsLaidOut ? kSizes.attention_rows : kSizes.few_attention_rows>(end, score_tiles, begin);
  for (int64_t r = begin; rows.is_scaled && r < end; ++r)
    for (int64_t s = first; s < first + count; s += kWidth)
      store(rows.scores[r] + s, load(rows.scores[r] + s) * load(rows.key_scales + s));
}

/// The weights of row r, stored in its scores as they will be multiplied: floats, or pairs of bfloat16
/// numbers, perhaps times the values' scales. Returns the sums of what was stored, lane by lane, without
/// scales.
inline Vec store_weights(const Vec* weights, AttentionRows& rows, int64_t r) {
  Vec total{};
  float* out = rows.scores[r];
  if (rows.is_scaled) {
#pragma GCC unroll 8
    for (int i = 0; i < kBlock / kWidth; i += 2) {
      const float* scales = rows.value_scales + i * kWidth;
      store(out + i / 2 * kWidth,
            narrowed(weights[i] * load(scales), weights[i + 1] * load(scales + kWidth)));
      total += weights[i] + weights[i + 1];
    }
    return total;
  }
  if (rows.is_paired) {
    const Vec ones = as_floats(WordVec{} + 0x3f803f80);
#pragma GCC unroll 8
    for (int i = 0; i < kBlock / kWidth; i += 2) {
      Vec pairs = narrowed(weights[i], weights[i + 1]);
      store(out + i / 2 * kWidth, pairs);
      total = dot_bfloats(pairs, ones, total);
    }
    return total;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kBlock / kWidth; ++i) {
    store(out + i * kWidth, weights[i]);
    total += weights[i];
  }
  return total;
}

/// One block of the online softmax: turns the block's scores into weights, and updates each row's peak, its
/// total, lane by lane, and its output. Most blocks do not raise a row's peak.
inline void softmax_block(AttentionRows& rows, int64_t begin, int64_t end, int64_t first, int64_t padded,
                          float scale) {
  // BEGIN task 2.4.2
  for (int64_t r = begin; r < end; ++r) {
    int64_t left = rows.visible[r] - first;
    Vec block[kBlock / kWidth], highest_lane = set(rows.peak[r]);
#pragma GCC unroll 8
    for (int i = 0; i < kBlock / kWidth; ++i) {
      block[i] = load(rows.scores[r] + i * kWidth) * set(scale);
      Vec hidden = set(-std::numeric_limits<float>::infinity());
      if (left < kBlock) block[i] = iota() < static_cast<int32_t>(left - i * kWidth) ? block[i] : hidden;
      highest_lane = max(highest_lane, block[i]);
    }
    if (any_above(highest_lane, rows.peak[r])) {
      float peak = highest(highest_lane);
      Vec shrink = exp_of_negative(set(rows.peak[r] - peak));
      float* out = rows.out + r * padded;
      for (int64_t k = 0; k < padded; k += kWidth) store(out + k, load(out + k) * shrink);
      rows.total[r] *= shrink;
      rows.peak[r] = peak;
    }
#pragma GCC unroll 8
    for (int i = 0; i < kBlock / kWidth; ++i) block[i] = exp_of_negative(block[i] - set(rows.peak[r]));
    rows.total[r] += store_weights(block, rows, r);
  }
  // END task 2.4.2
}

/// Adds the first `tokens` values of a run, each times its weight, to N vectors of the outputs of M rows,
/// from vector k on.
template <int M, int N, class T>
void accumulate_v_tile(const float (*weights)[kBlock], const KvRun<T>& value, int64_t tokens, int64_t k,
                       float* out, int64_t padded) {
  // BEGIN task 2.4.3
  Vec total[M][N];
  out += k * kWidth;
#pragma GCC unroll 32
  for (int i = 0; i < M * N; ++i) total[i / N][i % N] = load(out + i / N * padded + i % N * kWidth);
  for (int64_t s = 0; s < tokens; s += kTokensAStep<T>) {
    Vec v[N];
    load_values<N>(value, s, k, v);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      Vec weight = weight_of<T>(weights[m], value.first + s);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) total[m][n] = times_plus<T>(v[n], weight, total[m][n]);
    }
  }
#pragma GCC unroll 32
  for (int i = 0; i < M * N; ++i) store(out + i / N * padded + i % N * kWidth, total[i / N][i % N]);
  // END task 2.4.3
}

template <class T>
void accumulate_v(AttentionRows& rows, int64_t begin, int64_t end, int64_t first, int64_t padded,
                  const KvRun<T>& value) {
  in_tiles<kSizes.output_rows>(
      end,
      [&](auto height, int64_t r) {
        constexpr int kVectors = output_vectors(height);
        int64_t seen = rows.visible[r + height - 1] - first - value.first, k = 0;
        int64_t tokens = std::clamp<int64_t>(seen, 0, value.count);
        for (; k + kVectors <= padded / kWidth; k += kVectors)
          accumulate_v_tile<height, kVectors>(rows.scores + r, value, tokens, k, rows.out + r * padded,
                                              padded);
        for (; k < padded / kWidth; k += 2)
          accumulate_v_tile<height, 2>(rows.scores + r, value, tokens, k, rows.out + r * padded, padded);
      },
      begin);
}

inline void attend(ThreadPool& threads, int id, const Attention& a, const Item& item) {
  int64_t shared = a.shared(), padded = a.padded();
  int64_t a_group = item.num_tokens * item.num_heads;  // rows of one kv head
  int64_t num_rows = a_group * item.num_groups;
  const Tensor &q = a.query, &o = a.out;
  AttentionRows rows;
  rows.is_paired = a.is_paired(), rows.is_scaled = a.is_scaled();
  rows.query = buffer<float>(threads, id, kValues, 2 * kQueryRows * padded);
  rows.out = rows.query + kQueryRows * padded;
  rows.key = buffer<float>(threads, id, kPanel, 3 * kBlock * padded);
  rows.value = rows.key + 2 * kBlock * padded;
  std::fill_n(rows.out, num_rows * padded, 0.0f);
  for (int64_t r = 0; r < num_rows; ++r) {
    int64_t token = r % a_group / item.num_heads;
    int64_t head = (item.group + r / a_group) * shared + item.first_head + r % item.num_heads;
    int64_t at = item.batch * q.stride[0] + head * q.stride[1] + (item.first_token + token) * q.stride[2];
    lay_out_query(a, at, rows.query + r * padded);
    rows.visible[r] = a.causal ? item.visible + token : a.requests.lengths[item.request];
    rows.peak[r] = -std::numeric_limits<float>::infinity();
    rows.total[r] = Vec{};
  }
  // BEGIN task 2.5.3
  int64_t end = rows.visible[num_rows - 1];
  for (int64_t first = 0; first < end; first += kBlock) {
    int64_t count = std::min(kBlock, end - first);
    for (int64_t g = 0; g < item.num_groups; ++g) {
      int64_t begin = g * a_group + rows_before(a, item, first), behind = (g + 1) * a_group;
      with_keys(a, item, item.group + g, first, count, rows, [&](const auto& keys, int64_t at, int64_t size) {
        score(rows, begin, behind, padded, a.words(), keys, at, size);
      });
      softmax_block(rows, begin, behind, first, padded, a.scale);
      with_values(a, item, item.group + g, first, count, rows,
                  [&](const auto& value) { accumulate_v(rows, begin, behind, first, padded, value); });
    }
  }
  for (int64_t r = 0; r < num_rows; ++r) {
    int64_t token = item.first_token + r % a_group / item.num_heads;
    int64_t head = (item.group + r / a_group) * shared + item.first_head + r % item.num_heads;
    float* line = rows.out + r * padded;
    Vec total = set(sum(rows.total[r]));
    for (int64_t k = 0; k < padded; k += kWidth) store(line + k, load(line + k) / total);
    narrow(line, o.shape[3], o, item.batch * o.stride[0] + token * o.stride[1] + head * o.stride[2]);
  }
  // END task 2.5.3
}

/// Puts the items with the most work first, so that all threads finish at about the same time.
inline void largest_first(std::vector<Item>& items) {
  // BEGIN task 3.2.3
  auto work = [](const Item& item) {
    return (item.visible + item.num_tokens) * item.num_tokens * item.num_groups;
  };
  std::stable_sort(items.begin(), items.end(),
                   [&](const Item& x, const Item& y) { return work(x) > work(y); });
  // END task 3.2.3
}

void attention(ThreadPool& threads, const Tensor& query, const Tensor& key, const Tensor& value,
               const Requests& requests, bool causal, float scale, const Tensor& out) {
  if (out.size() == 0) return;
  Attention a{query, key, value, requests, causal, scale, out};
  std::vector<Item> items = items_of(a, tokens_of_item(a, threads.size()), threads.size());
  if (requests.starts != nullptr) largest_first(items);
  threads.each(static_cast<int64_t>(items.size()),
               [&](int id, int64_t item) { attend(threads, id, a, items[item]); });
}

}  // namespace tiny_llm::TINY_ISA
