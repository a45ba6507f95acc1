// Attention over stored keys and values, a block of them at a time (FlashAttention-2, arXiv 2307.08691).
//
// The rows of one kv head (its query heads, several tokens) share every block, which is decoded to floats once.
// Blocks begin at multiples of kBlock whatever the chunk, so that a token's result does not depend on its company.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "quantized_rows.h"

namespace tiny_llm::TINY_ISA {

constexpr int64_t kBlock = 32;     // stored tokens
constexpr int64_t kQueryRows = kMaxSharedHeads;  // rows that share a decoded block

struct Attention {
  const Tensor &query, &key, &value;
  const Requests& requests;
  bool causal;
  float scale;
  const Tensor& out;
  int64_t shared() const { return query.shape[1] / key.shape[1]; }  // query heads of a kv head
  int64_t padded() const { return rounded_up(query.shape[3], 4 * kWidth); }
};

/// All query heads of one kv head for a few neighbouring tokens of a request.
struct Item {
  int64_t request, group;
  int64_t batch, first_token, num_tokens;  // where the tokens stand in the query
  int64_t visible;                         // stored tokens that the first of them sees
};

/// Where a stored token of a request and a kv head lies in key or value: the number of its first element.
inline int64_t place(const Tensor& t, const Requests& requests, int64_t request, int64_t group, int64_t token) {
  int64_t block = request, inside = token;
  if (requests.tables != nullptr) {
    // BEGIN task 3.2.3
    throw std::runtime_error("task 3.2.3");
    // END task 3.2.3
  }
  return block * t.stride[0] + group * t.stride[1] + inside * t.stride[2];
}

/// How many of a request's `count` stored tokens from `token` on lie one behind the other, t.stride[2] apart.
inline int64_t together(const Tensor& t, const Requests& requests, int64_t token, int64_t count) {
  if (requests.tables == nullptr) return count;
  // BEGIN task 3.2.3
  throw std::runtime_error("task 3.2.3");
  // END task 3.2.3
}

/// What one item keeps while blocks go by: rows of queries, of weighted values, of scores.
struct AttentionRows {
  float *query, *out, *key, *value;  // [rows, padded] and [kBlock, padded]
  float scores[kQueryRows][kBlock];
  float peak[kQueryRows], total[kQueryRows];
  int64_t visible[kQueryRows];
};

/// Ask memory for a row of the next block. Blocks that were decoded lie in the cache: floats need no asking.
template <class T>
inline void ask_ahead(const T* row, int64_t count) {
  if constexpr (sizeof(T) < sizeof(float))
    for (int64_t i = 0; i < count; i += 64 / sizeof(T)) __builtin_prefetch(row + i);
}

/// `count` stored tokens from `first` on as floats [kBlock, padded], with zeros behind them.
inline void widen_block(const Tensor& t, const Requests& requests, const Item& item, int64_t first, int64_t count,
                        int64_t padded, float* out) {
  for (int64_t i = 0; i < count;) {
    int64_t run = together(t, requests, first + i, count - i);
    int64_t at = place(t, requests, item.request, item.group, first + i);
    if (t.dtype == DType::i8) {
      bool has_next = first + i + kBlock < requests.lengths[item.request];
      int64_t next = has_next ? place(t, requests, item.request, item.group, first + i + kBlock) : at;
      auto* row = static_cast<const int8_t*>(t.data);
      const float* scale = t.scales + at / t.shape[3];
      for (int64_t j = 0; j < run; ++j) {
        ask_ahead(row + next + j * t.stride[2], t.shape[3]);
        scale_row(row + at + j * t.stride[2], scale[j], t.shape[3], padded, out + (i + j) * padded);
      }
      i += run;
      continue;
    }
    for (int64_t end = i + run; i < end; ++i, at += t.stride[2])
      widen(t.data, t.dtype, at, t.shape[3], padded, out + i * padded);
  }
  std::fill_n(out + count * padded, (kBlock - count) * padded, 0.0f);
}

/// Scores of all rows against a block, and what the softmax makes of them: weights, and the peak that moved.
/// `next` is the block that will come, to be asked for.
template <class T>
void weigh(AttentionRows& rows, int64_t num_rows, int64_t first, int64_t padded, float scale, const T* key,
           const T* next, int64_t stride) {
  // BEGIN task 2.4.2
  throw std::runtime_error("task 2.4.2");
  // END task 2.4.2
}

/// Add a block's values, each times its weight, to kWidth * 4 numbers of M rows' outputs.
template <int M, class T>
void gather_tile(const float (*weights)[kBlock], const T* value, const T* next, int64_t stride, float* out,
                 int64_t padded) {
  // BEGIN task 2.4.3
  throw std::runtime_error("task 2.4.3");
  // END task 2.4.3
}

template <class T>
void gather(AttentionRows& rows, int64_t num_rows, int64_t padded, const T* value, const T* next, int64_t stride) {
  in_tiles(num_rows, [&](auto height, int64_t r) {
    for (int64_t k = 0; k < padded; k += 4 * kWidth)
      gather_tile<height>(rows.scores + r, value + k, next + k, stride, rows.out + r * padded + k, padded);
  });
}

/// Call use(block, next block, stride) on a block of stored rows: as they are if they are whole and serve a single tile,
/// so that decoding them once more costs nothing; otherwise, and with 8 bits, decoded into `floats` for all tiles.
template <class Use>
void with_block(const Tensor& t, const Requests& requests, const Item& item, int64_t first, int64_t count,
                int64_t padded, bool is_single, float* floats, const Use& use) {
  bool is_whole = count == kBlock && together(t, requests, first, count) == kBlock;
  if (!is_single || !is_whole || padded != t.shape[3] || t.dtype == DType::i8) {
    widen_block(t, requests, item, first, count, padded, floats);
    return use(floats, floats, padded);
  }
  int64_t next = first + kBlock < requests.lengths[item.request] ? first + kBlock : first;
  visit(t.dtype, [&](auto* type) {
    auto* at = static_cast<decltype(type)>(t.data);
    use(at + place(t, requests, item.request, item.group, first),
        at + place(t, requests, item.request, item.group, next), t.stride[2]);
  });
}

inline void attend(Team& team, int id, const Attention& a, const Item& item) {
  int64_t shared = a.shared(), padded = a.padded(), num_rows = item.num_tokens * shared;
  const Tensor &q = a.query, &o = a.out;
  AttentionRows rows{};
  rows.query = buffer<float>(team, id, kValues, 2 * kQueryRows * padded);
  rows.out = rows.query + kQueryRows * padded;
  rows.key = buffer<float>(team, id, kPanel, 2 * kBlock * padded);
  rows.value = rows.key + kBlock * padded;
  std::fill_n(rows.out, num_rows * padded, 0.0f);
  for (int64_t r = 0; r < num_rows; ++r) {
    int64_t token = item.first_token + r / shared, head = item.group * shared + r % shared;
    int64_t at = item.batch * q.stride[0] + head * q.stride[1] + token * q.stride[2];
    widen(q.data, q.dtype, at, q.shape[3], padded, rows.query + r * padded);
    rows.visible[r] = a.causal ? item.visible + r / shared : a.requests.lengths[item.request];
    rows.peak[r] = -std::numeric_limits<float>::infinity();
    rows.total[r] = 0.0f;
  }
  // BEGIN task 2.5.3
  throw std::runtime_error("task 2.5.3");
  // END task 2.5.3
}

/// Every request's tokens in items of at most `tokens`, the last ones first, as they see most.
inline std::vector<Item> items_of(const Attention& a, int64_t tokens) {
  std::vector<Item> items;
  const Requests& requests = a.requests;
  for (int64_t r = 0; r < requests.count; ++r) {
    bool is_packed = requests.starts != nullptr;
    int64_t start = is_packed ? requests.starts[r] : 0;
    int64_t count = is_packed ? requests.starts[r + 1] - start : a.query.shape[2];
    for (int64_t first = (count - 1) / tokens * tokens; first >= 0 && count > 0; first -= tokens)
      for (int64_t group = 0; group < a.key.shape[1]; ++group)
        items.push_back({r, group, is_packed ? 0 : r, start + first, std::min(tokens, count - first),
                         requests.lengths[r] - count + first + 1});
  }
  return items;
}

/// Order items so that those with the most to do are taken first: the team shall end together.
inline void largest_first(std::vector<Item>& items) {
  // BEGIN task 3.2.3
  throw std::runtime_error("task 3.2.3");
  // END task 3.2.3
}

void attention(Team& team, const Tensor& query, const Tensor& key, const Tensor& value, const Requests& requests,
               bool causal, float scale, const Tensor& out) {
  if (out.size() == 0) return;
  Attention a{query, key, value, requests, causal, scale, out};
  std::vector<Item> items = items_of(a, std::max<int64_t>(1, kQueryRows / a.shared()));
  if (requests.starts != nullptr) largest_first(items);
  team.each(static_cast<int64_t>(items.size()), [&](int id, int64_t item) { attend(team, id, a, items[item]); });
}

}  // namespace tiny_llm::TINY_ISA
