// A few rows of x times a matrix: every weight is decoded in registers and used immediately.
#pragma once

#include "ahead.h"

namespace tiny_llm::TINY_ISA {

/// Adds one span's products to the sums of M rows of x and N rows of the matrix:
/// total += scale * sum(weight * x). The span of row m of x begins at x[m]. The sums of a vector are
/// independent, so that no addition waits for the previous addition.
template <class Rows, int M, int N, class Span>
[[gnu::always_inline]] inline void add_span(const Span* spans, const float* const* x, Vec (*total)[N]) {
  // BEGIN task 2.3.3
  using Arithmetic = typename Rows::Arithmetic;
  typename Arithmetic::Part part[M][N];
#pragma GCC unroll 8
  for (int j = 0; j < Rows::kVectors; ++j) {
    Vec activation[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      activation[m] = load(x[m] + j * kWidth);
      pin(activation[m]);  // loaded once, not by every product
    }
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      Vec weight = spans[n].vector(j);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m)
        part[m][n] = j == 0 ? Arithmetic::times(weight, activation[m])
                            : Arithmetic::times_plus(weight, activation[m], part[m][n]);
    }
  }
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
    Vec scale = spans[n].scale();
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
      total[m][n] = fma(Arithmetic::value(part[m][n]), scaled<Rows>(scale, x[m]), total[m][n]);
  }
  // END task 2.3.3
}

/// The same for rows of x that are `stride` apart. If GCC knew that the next columns read the same
/// activations, it would keep far more of them than it has registers.
template <class Rows, int M, int N, class Span>
[[gnu::always_inline]] inline void add_columns(const Span* spans, const float* x, int64_t stride,
                                               Vec (*total)[N]) {
  const float* at[M];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    at[m] = x + m * stride;
    if constexpr (M > 1) forget(at[m]);
  }
  add_span<Rows, M, N>(spans, at, total);
}

/// Multiplies M rows of x, starting at `first_row`, by N rows of the matrix, decoded in registers: `column`
/// of the tile and every `apart` columns after it. The next call continues each row's memory where this call
/// stopped, which suits a hardware prefetcher best.
template <class Rows, int M, int N>
void few_rows(const Rows& rows, const Activations& x, int64_t first_row, const ColumnTile& tile,
              int64_t column, int64_t apart, float (*lines)[kFewColumns]) {
  int64_t whole = rows.matrix.columns / Rows::kSpan, last = tile.count - 1, index[N];
  decltype(rows.row(0)) row[N];
  const float *scales[N], *biases[N], *values = x.values + first_row * x.stride;
  // Only the first rows of x read the weights from memory.
  intptr_t ahead = first_row == 0 ? bytes_ahead(rows, tile, column, apart) : 0;
  for (int n = 0; n < N; ++n) {
    index[n] = std::min(column + n * apart, last);  // beyond the end, compute the last column again
    row[n] = rows.row(tile.first + index[n]);
    scales[n] = tile.scales + index[n] * x.groups;
    biases[n] = tile.biases + index[n] * x.groups;
  }
  // With many rows, the registers hold the parts of only two columns at a time.
  constexpr int kAtOnce = M > 2 ? std::min(N, 2) : N;
  Vec total[N / kAtOnce][M][kAtOnce];
#pragma GCC unroll 16
  for (int i = 0; i < M * N; ++i) total[i % N / kAtOnce][i / N][i % kAtOnce] = Vec{};
  for (int64_t span = 0; span < whole; ++span)
#pragma GCC unroll 4
    for (int n = 0; n < N; n += kAtOnce) {
      typename Rows::Span spans[kAtOnce];
#pragma GCC unroll 4
      for (int i = 0; i < kAtOnce; ++i) {
        prefetch_span<Rows>(row[n + i], span, ahead);
        spans[i] = rows.span(row[n + i], span, scales[n + i]);
      }
      add_columns<Rows, M, kAtOnce>(spans, values + span * kPrepared<Rows>, x.stride, total[n / kAtOnce]);
    }
  if (whole < x.spans)
#pragma GCC unroll 4
    for (int n = 0; n < N; n += kAtOnce) {
      typename Rows::End spans[kAtOnce];
      for (int i = 0; i < kAtOnce; ++i) spans[i] = rows.end(row[n + i], whole, scales[n + i]);
      add_columns<Rows, M, kAtOnce>(spans, values + whole * kPrepared<Rows>, x.stride, total[n / kAtOnce]);
    }
  Vec kept[M * N];  // taking the address of `total` would move it to memory
#pragma GCC unroll 16
  for (int i = 0; i < M * N; ++i) kept[i] = total[i % N / kAtOnce][i / N][i % kAtOnce];
  add_biases<M, N>(x.sums + first_row * x.groups, biases, x.groups, kept);
  for (int i = 0; i < M * N; i += 4) {
    float results[4];
    sum4(kept + i, results);
    for (int j = 0; j < 4; ++j) lines[first_row + (i + j) / N][index[(i + j) % N]] = results[j];
  }
}

/// Multiplies a few rows of x by the columns of a tile, with as many sums at a time as there are registers
/// for. Eight rows are four rows twice; the second time the weights come from the cache.
template <class Rows>
void few_rows_of(const Rows& rows, const Activations& x, const ColumnTile& tile) {
  float lines[kFewRows][kFewColumns];
  auto some = [&](auto height, int64_t first_row) {
    constexpr int kHeight = decltype(height)::value, kColumns = std::min(4, kSizes.few_sums / kHeight);
    int64_t apart = (tile.count + kColumns - 1) / kColumns;
    for (int64_t n = 0; n < apart; ++n)
      few_rows<Rows, kHeight, kColumns>(rows, x, first_row, tile, n, apart, lines);
  };
  int64_t row = 0;
  for (; row + 4 <= x.rows; row += 4) some(std::integral_constant<int, 4>(), row);
  for (; row + 2 <= x.rows; row += 2) some(std::integral_constant<int, 2>(), row);
  for (; row < x.rows; ++row) some(std::integral_constant<int, 1>(), row);
  store_rows(tile.product, 0, x.rows, tile.first, tile.count, lines[0], kFewColumns);
}

}  // namespace tiny_llm::TINY_ISA
