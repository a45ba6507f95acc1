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

/// Computes the scores, not scaled, of rows `begin` to `end - 1` against a run of keys.
template <class T>
void score(AttentionRows& rows, int64_t begin, int64_t end, int64_t padded, const KvRun<T>& key) {
  // BEGIN task 2.4.2
  auto score_tile = [&](auto height, int64_t r) {
    for (int64_t n = 0; n < key.count; n += kTileColumns) {
      Vec sums[height * kTileColumns];
      int64_t at = n * key.stride;
      tile<height>(rows.query + r * padded, padded, key.rows + at, key.next + at, key.stride, padded, sums);
      for (int i = 0; i < height; ++i) sum4(sums + i * kTileColumns, rows.scores[r + i] + key.first + n);
    }
  };
  in_tiles<kSizes.attention_rows>(end, score_tile, begin);
  // END task 2.4.2
}

/// One block of the online softmax: turns the block's scores into weights, and updates each row's peak, total
/// and output.
inline void softmax_block(AttentionRows& rows, int64_t begin, int64_t end, int64_t first, int64_t padded,
                          float scale) {
  // BEGIN task 2.4.2
  for (int64_t r = begin; r < end; ++r) {
    float* scores = rows.scores[r];
    Vec highest_lane = set(rows.peak[r]);
    for (int64_t i = 0; i < kBlock; i += kWidth) {
      Vec hidden = set(-std::numeric_limits<float>::infinity());
      Vec left = set(static_cast<float>(rows.visible[r] - first - i));
      Vec seen = __builtin_convertvector(iota(), Vec) < left ? load(scores + i) * set(scale) : hidden;
      store(scores + i, seen);
      highest_lane = max(highest_lane, seen);
    }
    float peak = highest(highest_lane);
    Vec total{};
    for (int64_t i = 0; i < kBlock; i += kWidth) {
      Vec weight = exp(load(scores + i) - set(peak));
      store(scores + i, weight);
      total += weight;
    }
    float shrink = exp(set(rows.peak[r] - peak))[0];
    rows.total[r] = rows.total[r] * shrink + sum(total);
    float* out = rows.out + r * padded;
    if (shrink != 1.0f)
      for (int64_t k = 0; k < padded; k += kWidth) store(out + k, load(out + k) * set(shrink));
    rows.peak[r] = peak;
  }
  // END task 2.4.2
}

/// Adds a run's values, each times its weight, to the outputs of M rows.
template <int M, class T>
void accumulate_v_tile(const float (*weights)[kBlock], const KvRun<T>& value, float* out, int64_t padded) {
  // BEGIN task 2.4.3
  for (int64_t s = 0; s < value.count; s += kTileColumns) {
    const T *row = value.rows + s * value.stride, *next = value.next + s * value.stride;
    Vec weight[M][kTileColumns];
#pragma GCC unroll 24
    for (int i = 0; i < M * kTileColumns; ++i)
      weight[i / kTileColumns][i % kTileColumns] =
          set(weights[i / kTileColumns][value.first + s + i % kTileColumns]);
    for (int64_t k = 0; k < padded; k += kWidth) {
      prefetch(next + kTileColumns * k, kTileColumns * kWidth);
      Vec v[kTileColumns];
#pragma GCC unroll 4
      for (int j = 0; j < kTileColumns; ++j) v[j] = load(row + j * value.stride + k);
#pragma GCC unroll 6
      for (int i = 0; i < M; ++i) {
        Vec total = load(out + i * padded + k);
#pragma GCC unroll 4
        for (int j = 0; j < kTileColumns; ++j) total = fma(weight[i][j], v[j], total);
        store(out + i * padded + k, total);
      }
    }
  }
  // END task 2.4.3
}

template <class T>
void accumulate_v(AttentionRows& rows, int64_t begin, int64_t end, int64_t padded, const KvRun<T>& value) {
  in_tiles<kSizes.attention_rows>(
      end,
      [&](auto height, int64_t r) {
        accumulate_v_tile<height>(rows.scores + r, value, rows.out + r * padded, padded);
      },
      begin);
}

inline void attend(ThreadPool& threads, int id, const Attention& a, const Item& item) {
  int64_t shared = a.shared(), padded = a.padded();
  int64_t a_group = item.num_tokens * item.num_heads;  // rows of one kv head
  int64_t num_rows = a_group * item.num_groups;
  const Tensor &q = a.query, &o = a.out;
  AttentionRows rows{};
  rows.query = buffer<float>(threads, id, kValues, 2 * kQueryRows * padded);
  rows.out = rows.query + kQueryRows * padded;
  rows.key = buffer<float>(threads, id, kPanel, 2 * kBlock * padded);
  rows.value = rows.key + kBlock * padded;
  std::fill_n(rows.out, num_rows * padded, 0.0f);
  for (int64_t r = 0; r < num_rows; ++r) {
    int64_t token = r % a_group / item.num_heads;
    int64_t head = (item.group + r / a_group) * shared + item.first_head + r % item.num_heads;
    int64_t at = item.batch * q.stride[0] + head * q.stride[1] + (item.first_token + token) * q.stride[2];
    lay_out_query(a, at, rows.query + r * padded);
    rows.visible[r] = a.causal ? item.visible + token : a.requests.lengths[item.request];
    rows.peak[r] = -std::numeric_limits<float>::infinity();
    rows.total[r] = 0.0f;
  }
  // BEGIN task 2.5.3
  int64_t end = rows.visible[num_rows - 1];
  for (int64_t first = 0; first < end; first += kBlock) {
    int64_t count = std::min(kBlock, end - first);
    for (int64_t g = 0, row = 0; g < item.num_groups; ++g, row += a_group) {
      with_keys(a, item, item.group + g, first, count, rows.key,
                [&](const auto& key) { score(rows, row, row + a_group, padded, key); });
      softmax_block(rows, row, row + a_group, first, padded, a.scale);
      with_block(a, a.value, item, item.group + g, first, count, rows.value,
                 [&](const auto& value) { accumulate_v(rows, row, row + a_group, padded, value); });
    }
  }
  for (int64_t r = 0; r < num_rows; ++r) {
    int64_t token = item.first_token + r % a_group / item.num_heads;
    int64_t head = (item.group + r / a_group) * shared + item.first_head + r % item.num_heads;
    float* line = rows.out + r * padded;
    for (int64_t k = 0; k < padded; k += kWidth) store(line + k, load(line + k) / set(rows.total[r]));
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
