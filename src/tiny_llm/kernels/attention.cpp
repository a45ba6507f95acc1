// Attention over stored keys and values, a block of them at a time (FlashAttention-2, arXiv 2307.08691).
//
// The rows of one kv head (its query heads, several tokens) share every block, which is decoded to floats once.
// Blocks begin at multiples of kBlock whatever the chunk, so that a token's result does not depend on its company.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "quantized_rows.h"

namespace tiny_llm::TINY_ISA {

constexpr int64_t kBlock = 32;     // stored tokens
constexpr int64_t kQueryRows = kMaxSharedHeads;  // rows that share a decoded block
constexpr int64_t kFewRows = 4 * kTileRows;      // for so few a block is not decoded first

struct Attention {
  const Tensor &query, &key, &value;
  const Requests& requests;
  bool causal;
  float scale;
  const Tensor& out;
  int64_t shared() const { return query.shape[1] / key.shape[1]; }  // query heads of a kv head
  int64_t padded() const { return rounded_up(query.shape[3], 4 * kWidth); }
};

/// All query heads of neighbouring kv heads for a few neighbouring tokens of a request.
struct Item {
  int64_t request, group, num_groups;
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

/// Stored tokens `first` to `first + count - 1` of a block, a multiple of kTileColumns, whose rows stand `stride` apart,
/// and the rows that will be read after them.
template <class T>
struct Run {
  const T *rows, *next;
  int64_t stride, first, count;
};

/// Where those numbers lie that an item reads after a token's of a kv head: the next head's, then the next block's.
inline int64_t place_after(const Tensor& t, const Requests& requests, const Item& item, int64_t group, int64_t token) {
  bool is_last = group + 1 == item.group + item.num_groups;
  int64_t next = is_last && token + kBlock < requests.lengths[item.request] ? token + kBlock : token;
  return place(t, requests, item.request, is_last ? item.group : group + 1, next);
}

/// `count` stored tokens from `first` on as floats [kBlock, padded], with zeros behind them.
inline void widen_block(const Tensor& t, const Requests& requests, const Item& item, int64_t group, int64_t first,
                        int64_t count, int64_t padded, float* out) {
  for (int64_t i = 0; i < count;) {
    int64_t run = together(t, requests, first + i, count - i);
    int64_t at = place(t, requests, item.request, group, first + i);
    if (t.dtype == DType::i8) {
      int64_t next = place_after(t, requests, item, group, first + i);
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

/// Scores of rows `begin` to `end - 1` against a run of keys, not scaled.
template <class T>
void score(AttentionRows& rows, int64_t begin, int64_t end, int64_t padded, const Run<T>& key) {
  // BEGIN task 2.4.2
  throw std::runtime_error("task 2.4.2");
  // END task 2.4.2
}

/// What the softmax makes of a block's scores: weights, and the peak that moved.
inline void weigh(AttentionRows& rows, int64_t begin, int64_t end, int64_t first, int64_t padded, float scale) {
  // BEGIN task 2.4.2
  throw std::runtime_error("task 2.4.2");
  // END task 2.4.2
}

/// Add a run's values, each times its weight, to M rows' outputs.
template <int M, class T>
void gather_tile(const float (*weights)[kBlock], const Run<T>& value, float* out, int64_t padded) {
  // BEGIN task 2.4.3
  throw std::runtime_error("task 2.4.3");
  // END task 2.4.3
}

template <class T>
void gather(AttentionRows& rows, int64_t begin, int64_t end, int64_t padded, const Run<T>& value) {
  in_tiles(end, [&](auto height, int64_t r) { gather_tile<height>(rows.scores + r, value, rows.out + r * padded, padded); },
           begin);
}

/// Call use(run) on what a block of a kv head consists of: its rows as they are if they are whole and serve few tiles,
/// so that decoding them in each costs less than a store and a load; otherwise, and with 8 bits, decoded into `floats`.
template <class Use>
void with_block(const Attention& a, const Tensor& t, const Item& item, int64_t group, int64_t first, int64_t count,
                float* floats, const Use& use) {
  bool is_few = item.num_tokens * a.shared() <= kFewRows;
  bool is_whole = count == kBlock && (a.requests.tables == nullptr || t.shape[2] % kTileColumns == 0);
  if (!is_few || !is_whole || a.padded() != t.shape[3] || t.dtype == DType::i8) {
    widen_block(t, a.requests, item, group, first, count, a.padded(), floats);
    return use(Run<float>{floats, floats, a.padded(), 0, kBlock});
  }
  for (int64_t i = 0, run; i < kBlock; i += run) {
    run = together(t, a.requests, first + i, kBlock - i);
    int64_t at = place(t, a.requests, item.request, group, first + i);
    int64_t next = place_after(t, a.requests, item, group, first + i);
    visit(t.dtype, [&](auto* type) {
      auto* data = static_cast<decltype(type)>(t.data);
      use(Run<std::remove_pointer_t<decltype(type)>>{data + at, data + next, t.stride[2], i, run});
    });
  }
}

inline void attend(Team& team, int id, const Attention& a, const Item& item) {
  int64_t shared = a.shared(), padded = a.padded(), a_group = item.num_tokens * shared;  // rows of one kv head
  int64_t num_rows = a_group * item.num_groups;
  const Tensor &q = a.query, &o = a.out;
  AttentionRows rows{};
  rows.query = buffer<float>(team, id, kValues, 2 * kQueryRows * padded);
  rows.out = rows.query + kQueryRows * padded;
  rows.key = buffer<float>(team, id, kPanel, 2 * kBlock * padded);
  rows.value = rows.key + kBlock * padded;
  std::fill_n(rows.out, num_rows * padded, 0.0f);
  for (int64_t r = 0; r < num_rows; ++r) {
    int64_t token = r % a_group / shared, head = (item.group + r / a_group) * shared + r % shared;
    int64_t at = item.batch * q.stride[0] + head * q.stride[1] + (item.first_token + token) * q.stride[2];
    widen(q.data, q.dtype, at, q.shape[3], padded, rows.query + r * padded);
    rows.visible[r] = a.causal ? item.visible + token : a.requests.lengths[item.request];
    rows.peak[r] = -std::numeric_limits<float>::infinity();
    rows.total[r] = 0.0f;
  }
  // BEGIN task 2.5.3
  throw std::runtime_error("task 2.5.3");
  // END task 2.5.3
}

/// How many kv heads of a request with one new token an item takes, if the stored tokens of `all` requests are to give
/// two items a member. A block of a pool holds all heads' rows in one piece, which memory gives faster than parts of it
/// from here and there.
inline int64_t groups_of_item(const Attention& a, int64_t request, int64_t all, int team_size) {
  int64_t groups = a.key.shape[1], fair = all * groups / (2 * team_size) / std::max(a.requests.lengths[request], 1);
  return std::clamp<int64_t>(fair, 1, std::min(groups, kQueryRows / a.shared()));
}

/// Every request's tokens in items of at most `tokens`, the last ones first, as they see most.
inline std::vector<Item> items_of(const Attention& a, int64_t tokens, int team_size) {
  std::vector<Item> items;
  const Requests& requests = a.requests;
  int64_t all = std::accumulate(requests.lengths, requests.lengths + requests.count, int64_t{0});
  for (int64_t r = 0; r < requests.count; ++r) {
    bool is_packed = requests.starts != nullptr;
    int64_t start = is_packed ? requests.starts[r] : 0;
    int64_t count = is_packed ? requests.starts[r + 1] - start : a.query.shape[2];
    int64_t groups = a.key.shape[1], step = is_packed && count == 1 ? groups_of_item(a, r, all, team_size) : 1;
    for (int64_t first = (count - 1) / tokens * tokens; first >= 0 && count > 0; first -= tokens)
      for (int64_t group = 0; group < groups; group += step)
        items.push_back({r, group, std::min(step, groups - group), is_packed ? 0 : r, start + first,
                         std::min(tokens, count - first), requests.lengths[r] - count + first + 1});
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
  std::vector<Item> items = items_of(a, std::max<int64_t>(1, kQueryRows / a.shared()), team.size());
  if (requests.starts != nullptr) largest_first(items);
  team.each(static_cast<int64_t>(items.size()), [&](int id, int64_t item) { attend(team, id, a, items[item]); });
}

}  // namespace tiny_llm::TINY_ISA
