// Weights that a thread reads soon, prefetched into the second cache while it multiplies others.
//
// Not into the first one: that waits for few lines at a time, and with those of later rows it would wait for
// memory in place of reading. On Zen 4 one row took 1.1 to 1.3 times as long.
#pragma once

#include "columns.h"

namespace tiny_llm::TINY_ISA {

constexpr int64_t kAhead = 2048;  // bytes before their use that weights are prefetched

/// Prefetch what lies `ahead` bytes behind span `number` of a row; an address outside of the matrix does no
/// harm. Always inline, as for `prefetch`.
template <class Rows, class T>
[[gnu::always_inline]] inline void prefetch_span(const T* row, int64_t number, intptr_t ahead) {
  auto at = reinterpret_cast<intptr_t>(row) + ahead + number * Rows::kSpanBytes;
#pragma GCC unroll 16
  for (int i = 0; i < Rows::kSpanBytes; i += 64)
    __builtin_prefetch(reinterpret_cast<const char*>(at + i), 0, 2);
}

/// From `column` of a tile, how far away those weights are that are read at least kAhead bytes later, if the
/// columns `apart` from each other are read side by side: further columns of the tile, then the next tile's.
template <class Rows>
inline intptr_t bytes_ahead(const Rows& rows, const ColumnTile& tile, int64_t column, int64_t apart) {
  int64_t row_bytes = rows.matrix.columns * Rows::kSpanBytes / Rows::kSpan;
  int64_t soon = column + (kAhead + row_bytes - 1) / row_bytes;
  auto at = soon < apart ? rows.row(tile.first + soon) : Rows{tile.next}.row(tile.next_first + soon - apart);
  return reinterpret_cast<intptr_t>(at) - reinterpret_cast<intptr_t>(rows.row(tile.first + column));
}

/// How far away the same columns of the next tile are.
template <class Rows>
inline intptr_t bytes_to_next(const Rows& rows, const ColumnTile& tile) {
  auto next = Rows{tile.next}.row(tile.next_first);
  return reinterpret_cast<intptr_t>(next) - reinterpret_cast<intptr_t>(rows.row(tile.first));
}

/// Prefetch scales and biases of `count` columns, or of as many as there are.
[[gnu::always_inline]] inline void prefetch_groups(const Matrix& w, int64_t first, int64_t count) {
  int64_t bytes = w.columns / w.group_size * (w.dtype == DType::f32 ? 4 : 2);
  for (const void* data : {w.scales, w.biases})
    for (int64_t i = first * bytes; i < std::min(first + count, w.rows) * bytes; i += 64)
      __builtin_prefetch(static_cast<const char*>(data) + i, 0, 2);
}

}  // namespace tiny_llm::TINY_ISA
