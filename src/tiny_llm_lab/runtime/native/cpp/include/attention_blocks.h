// How a block of stored keys or values is handed to what multiplies it: as it is stored, or decoded first.
#pragma once

#include "attention_items.h"
#include "quantized_rows.h"

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

/// `count` stored tokens from `first` on as floats [kBlock, padded], with zeros behind them.
inline void widen_block(const Tensor& t, const Requests& requests, const Item& item, int64_t group,
                        int64_t first, int64_t count, int64_t padded, float* out) {
  for (int64_t i = 0; i < count;) {
    int64_t run = contiguous_tokens(t, requests, first + i, count - i);
    int64_t at = kv_offset(t, requests, item.request, group, first + i);
    if (t.dtype == DType::i8) {
      int64_t next = next_kv_offset(t, requests, item, group, first + i);
      auto* row = static_cast<const int8_t*>(t.data);
      const float* scale = t.scales + at / t.shape[3];
      for (int64_t j = 0; j < run; ++j) {
        prefetch(row + next + j * t.stride[2], t.shape[3]);
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

/// The same of keys as they are.
inline void copy_keys(const Attention& a, const Item& item, int64_t group, int64_t first, int64_t count,
                      PairedBf16* out) {
  const Tensor& t = a.key;
  std::memset(out, 0, kBlock * a.padded() * sizeof(bf16));
  for (int64_t i = 0; i < count;) {
    int64_t run = contiguous_tokens(t, a.requests, first + i, count - i);
    auto* row = static_cast<const bf16*>(t.data) + kv_offset(t, a.requests, item.request, group, first + i);
    for (int64_t end = i + run; i < end; ++i, row += t.stride[2])
      std::memcpy(out + i * a.padded(), row, t.shape[3] * sizeof(bf16));
  }
}

/// Call use(run) for each contiguous run of a whole block of a kv head.
template <class T, class Use>
void with_stored(const Attention& a, const Tensor& t, const Item& item, int64_t group, int64_t first,
                 const Use& use) {
  auto* data = static_cast<const T*>(t.data);
  for (int64_t i = 0, run; i < kBlock; i += run) {
    run = contiguous_tokens(t, a.requests, first + i, kBlock - i);
    int64_t at = kv_offset(t, a.requests, item.request, group, first + i);
    int64_t next = next_kv_offset(t, a.requests, item, group, first + i);
    use(KvRun<T>{data + at, data + next, t.stride[2], i, run});
  }
}

/// Call use(run) for each contiguous run of a block of a kv head. The rows stay in their dtype if they are
/// whole and serve few tiles, as decoding them in each tile is then cheaper than a store and a load.
/// Otherwise, and with 8 bits, the block is decoded into `floats` first.
template <class Use>
void with_block(const Attention& a, const Tensor& t, const Item& item, int64_t group, int64_t first,
                int64_t count, float* floats, const Use& use) {
  bool is_few = item.num_tokens * item.num_heads <= kSizes.few_query_rows;
  if (!is_few || !a.is_whole(t, count) || t.dtype == DType::i8) {
    widen_block(t, a.requests, item, group, first, count, a.padded(), floats);
    return use(KvRun<float>{floats, floats, a.padded(), 0, kBlock});
  }
  visit(t.dtype, [&](auto* type) {
    with_stored<std::remove_pointer_t<decltype(type)>>(a, t, item, group, first, use);
  });
}

/// The same for keys. Those that are multiplied as they are have nothing to be decoded, however many tiles
/// they serve: a block that is not whole is copied into `room`.
template <class Use>
void with_keys(const Attention& a, const Item& item, int64_t group, int64_t first, int64_t count, float* room,
               const Use& use) {
  if constexpr (kHasBfloatDots) {
    if (a.is_paired()) {
      if (a.is_whole(a.key, count)) return with_stored<PairedBf16>(a, a.key, item, group, first, use);
      auto* copy = reinterpret_cast<PairedBf16*>(room);
      copy_keys(a, item, group, first, count, copy);
      return use(KvRun<PairedBf16>{copy, copy, a.padded(), 0, kBlock});
    }
  }
  with_block(a, a.key, item, group, first, count, room, use);
}

}  // namespace tiny_llm::TINY_ISA
