// Attention over stored keys and values, a block of them at a time (FlashAttention-2, arXiv 2307.08691).
//
// The rows of one kv head (its query heads, several tokens) share every block, which is decoded to floats once.
// Blocks begin at multiples of kBlock whatever the chunk, so that a token's result does not depend on its company.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tiles.h"

namespace tiny_llm::TINY_ISA {

constexpr int64_t kBlock = 32;     // stored tokens
constexpr int64_t kQueryRows = 24;  // rows that share a decoded block

struct Attention {
  const Tensor &query, &key, &value;
  const int32_t* lengths;
  bool causal;
  float scale;
  const Tensor& out;
  int64_t shared() const { return query.shape[1] / key.shape[1]; }  // query heads of a kv head
  int64_t padded() const { return rounded_up(query.shape[3], 4 * kWidth); }
};

/// What one item keeps while blocks go by: rows of queries, of weighted values, of scores.
struct AttentionRows {
  float *query, *out, *key, *value;  // [rows, padded] and [kBlock, padded]
  float scores[kQueryRows][kBlock];
  float peak[kQueryRows], total[kQueryRows];
  int64_t visible[kQueryRows];
};

inline void widen_rows(const Tensor& t, int64_t batch, int64_t head, int64_t first, int64_t count, int64_t room,
                       int64_t padded, float* out) {
  int64_t at = batch * t.stride[0] + head * t.stride[1] + first * t.stride[2];
  for (int64_t i = 0; i < count; ++i, at += t.stride[2])
    widen(t.data, t.dtype, at, t.shape[3], padded, out + i * padded);
  std::fill_n(out + count * padded, (room - count) * padded, 0.0f);
}

/// Ask memory for a row of the next block. Blocks that were decoded lie in the cache: floats need no asking.
template <class T>
inline void ask_ahead(const T* row, int64_t count) {
  if constexpr (sizeof(T) < sizeof(float))
    for (int64_t i = 0; i < count; i += 64 / sizeof(T)) __builtin_prefetch(row + i);
}

/// Scores of all rows against a block, and what the softmax makes of them: weights, and the peak that moved.
template <class T>
void weigh(AttentionRows& rows, int64_t num_rows, int64_t first, int64_t padded, float scale, const T* key,
           int64_t stride) {
  // BEGIN task 2.4.2
  throw std::runtime_error("task 2.4.2");
  // END task 2.4.2
}

/// Add a block's values, each times its weight, to kWidth * 4 numbers of M rows' outputs.
template <int M, class T>
void gather_tile(const float (*weights)[kBlock], const T* value, int64_t stride, float* out, int64_t padded) {
  // BEGIN task 2.4.3
  throw std::runtime_error("task 2.4.3");
  // END task 2.4.3
}

template <class T>
void gather(AttentionRows& rows, int64_t num_rows, int64_t padded, const T* value, int64_t stride) {
  in_tiles(num_rows, [&](auto height, int64_t r) {
    for (int64_t k = 0; k < padded; k += 4 * kWidth)
      gather_tile<height>(rows.scores + r, value + k, stride, rows.out + r * padded + k, padded);
  });
}

/// Call use(pointer, stride) on a block of stored rows: as they are if they are whole and serve a single tile, so that
/// decoding them once more costs nothing; otherwise decoded into `floats` for all tiles.
template <class Use>
void with_block(const Tensor& t, int64_t batch, int64_t group, int64_t first, int64_t count, int64_t padded,
                bool is_single, float* floats, const Use& use) {
  if (!is_single || count < kBlock || padded != t.shape[3]) {
    widen_rows(t, batch, group, first, count, kBlock, padded, floats);
    return use(floats, padded);
  }
  visit(t.dtype, [&](auto* type) {
    auto* at = static_cast<decltype(type)>(t.data);
    use(at + batch * t.stride[0] + group * t.stride[1] + first * t.stride[2], t.stride[2]);
  });
}

/// All query heads of one kv head for `num_tokens` tokens from `first_token` on.
inline void attend(Team& team, int id, const Attention& a, int64_t batch, int64_t group, int64_t first_token,
                   int64_t num_tokens) {
  int64_t shared = a.shared(), padded = a.padded(), num_rows = num_tokens * shared;
  int64_t length = a.lengths[batch], new_tokens = a.query.shape[2];
  AttentionRows rows{};
  rows.query = buffer<float>(team, id, kValues, 2 * kQueryRows * padded);
  rows.out = rows.query + kQueryRows * padded;
  rows.key = buffer<float>(team, id, kPanel, 2 * kBlock * padded);
  rows.value = rows.key + kBlock * padded;
  std::fill_n(rows.out, num_rows * padded, 0.0f);
  for (int64_t r = 0; r < num_rows; ++r) {
    int64_t token = first_token + r / shared;
    widen_rows(a.query, batch, group * shared + r % shared, token, 1, 1, padded, rows.query + r * padded);
    rows.visible[r] = a.causal ? length - new_tokens + token + 1 : length;
    rows.peak[r] = -std::numeric_limits<float>::infinity();
    rows.total[r] = 0.0f;
  }
  // BEGIN task 2.5.3
  throw std::runtime_error("task 2.5.3");
  // END task 2.5.3
}

void attention(Team& team, const Tensor& query, const Tensor& key, const Tensor& value, const int32_t* lengths,
               bool causal, float scale, const Tensor& out) {
  if (out.size() == 0) return;
  Attention a{query, key, value, lengths, causal, scale, out};
  int64_t tokens = std::max<int64_t>(1, kQueryRows / a.shared()), groups = key.shape[1];
  if (a.shared() > kQueryRows) throw std::invalid_argument("attention takes at most 24 query heads for a kv head");
  int64_t blocks = (query.shape[2] + tokens - 1) / tokens;
  team.each(query.shape[0] * groups * blocks, [&](int id, int64_t item) {
    // The last tokens see most: their blocks go first, so that the team ends together.
    int64_t block = blocks - 1 - item / (query.shape[0] * groups), rest = item % (query.shape[0] * groups);
    int64_t first = block * tokens;
    attend(team, id, a, rest / groups, rest % groups, first, std::min(tokens, query.shape[2] - first));
  });
}

}  // namespace tiny_llm::TINY_ISA
