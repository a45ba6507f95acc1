// The items into which the work of one attention is divided, each for one thread, and what an item reads and
// keeps.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "tiles.h"

namespace tiny_llm::TINY_ISA {

constexpr int64_t kBlock = 64;                     // stored tokens
constexpr int64_t kQueryRows = kSizes.query_rows;  // the most rows of an item

struct Attention {
  const Tensor &query, &key, &value;
  const Requests& requests;
  bool causal;
  float scale;
  const Tensor& out;
  int64_t shared() const { return query.shape[1] / key.shape[1]; }  // query heads of a kv head
  int64_t padded() const { return rounded_up(query.shape[3], 2 * kWidth); }
  /// Whether queries, stored keys and values are multiplied as bfloat16 numbers, two to a lane.
  bool is_paired() const {
    bool are_pairs = key.dtype == DType::bf16 || key.dtype == DType::i8;
    return kMultipliesPairs && query.dtype == DType::bf16 && are_pairs;
  }
  /// Whether scores and weights are multiplied with the scales of keys and values.
  bool is_scaled() const { return is_paired() && key.dtype == DType::i8; }
  int64_t words() const { return is_paired() ? padded() / 2 : padded(); }  // of a row
  /// Whether tiles can read the next `count` stored tokens where they are.
  bool is_whole(const Tensor& t, int64_t count) const {
    bool is_run = requests.tables == nullptr || t.shape[2] % kWidth == 0;
    return is_run && count == kBlock && padded() == t.shape[3];
  }
};

/// A few neighbouring tokens of a request, and of neighbouring kv heads the query heads `first_head` to
/// `first_head + num_heads - 1`: all of them, unless there are more than kQueryRows.
struct Item {
  int64_t request, group, num_groups;
  int64_t first_head, num_heads;           // of each kv head
  int64_t batch, first_token, num_tokens;  // where the tokens are in the query
  int64_t visible;                         // stored tokens that the first of them sees
  /// Whether its rows are so few tiles that blocks are not laid out for them first.
  bool is_few() const { return num_tokens * num_heads <= kSizes.few_query_rows; }
};

/// How many of an item's rows for a kv head see nothing of the block that begins at token `first`: the first
/// ones.
inline int64_t rows_before(const Attention& a, const Item& item, int64_t first) {
  return a.causal ? std::max<int64_t>(0, first + 1 - item.visible) * item.num_heads : 0;
}

/// State of one item during its walk over the blocks: rows of queries, of the output so far, of scores.
/// Paired numbers take the first half of a row, in weights too.
struct AttentionRows {
  float *query, *out, *key, *value;  // [rows, padded] and [kBlock, padded]
  bool is_paired, is_scaled;
  float scores[kQueryRows][kBlock];
  float key_scales[kBlock], value_scales[kBlock];
  float peak[kQueryRows];
  Vec total[kQueryRows];
  int64_t visible[kQueryRows];
};

/// Contiguous stored tokens `first` to `first + count - 1` of a block, whose rows are `stride` elements
/// apart. `count` is a multiple of kWidth.
template <class T>
struct KvRun {
  const T* rows;
  int64_t stride, first, count;
};

/// Query heads of a kv head that one item takes, in blocks of nearly equal size.
inline int64_t heads_of_item(const Attention& a) {
  int64_t blocks = (a.shared() + kQueryRows - 1) / kQueryRows;
  return (a.shared() + blocks - 1) / blocks;
}

/// How many kv heads of a request with one new token an item takes, so that the stored tokens of all requests
/// make two items a thread. A block of a pool holds all heads' rows in one piece, which memory delivers
/// faster than scattered parts of it.
inline int64_t groups_of_item(const Attention& a, int64_t request, int64_t all, int num_threads) {
  int64_t groups = a.key.shape[1],
          fair = all * groups / (2 * num_threads) / std::max(a.requests.lengths[request], 1);
  return std::clamp<int64_t>(fair, 1, std::min(groups, kQueryRows / heads_of_item(a)));
}

/// How many new tokens of a request an item takes: as many as its rows allow, but no more than leave two
/// items for each thread.
inline int64_t tokens_of_item(const Attention& a, int num_threads) {
  int64_t fair = a.query.shape[0] * a.query.shape[2] * a.key.shape[1] / (2 * num_threads);
  return std::max<int64_t>(1, std::clamp(fair * a.shared(), kSizes.few_query_rows, kQueryRows) / a.shared());
}

/// Items of at most `tokens` tokens of each request, the last tokens first, as they see most.
inline std::vector<Item> items_of(const Attention& a, int64_t tokens, int num_threads) {
  std::vector<Item> items;
  const Requests& requests = a.requests;
  int64_t all = std::accumulate(requests.lengths, requests.lengths + requests.count, int64_t{0});
  int64_t heads = heads_of_item(a);
  for (int64_t r = 0; r < requests.count; ++r) {
    bool is_packed = requests.starts != nullptr;
    int64_t start = is_packed ? requests.starts[r] : 0;
    int64_t count = is_packed ? requests.starts[r + 1] - start : a.query.shape[2];
    bool is_decode = is_packed && count == 1 && heads == a.shared();
    int64_t groups = a.key.shape[1], step = is_decode ? groups_of_item(a, r, all, num_threads) : 1;
    for (int64_t first = (count - 1) / tokens * tokens; first >= 0 && count > 0; first -= tokens)
      for (int64_t group = 0; group < groups; group += step)
        for (int64_t head = 0; head < a.shared(); head += heads)
          items.push_back({r, group, std::min(step, groups - group), head, std::min(heads, a.shared() - head),
                           is_packed ? 0 : r, start + first, std::min(tokens, count - first),
                           requests.lengths[r] - count + first + 1});
  }
  return items;
}

}  // namespace tiny_llm::TINY_ISA
