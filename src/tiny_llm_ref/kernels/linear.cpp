// x times the transpose of a matrix, dense or packed, for one row or for thousands.
//
// Few rows are memory-bound: every weight is decoded in registers and used immediately. Many rows are
// compute-bound: a panel of weights is decoded into the cache once and multiplied with all rows in tiles.
// Both add the same numbers in the same order, so a result does not depend on the number of rows or their
// place.
#include <algorithm>

#include "few_rows.h"

namespace tiny_llm::TINY_ISA {

constexpr int64_t kBlockRows = kSizes.block_rows;
constexpr int64_t kBlockColumns = 32;  // of one item: a cache line of 16-bit results
// A panel is decoded just before all rows of a block use it, and stays in the nearest cache meanwhile.
constexpr int64_t kPanelColumns = 8, kPanelElements = 1024;
template <class Rows>
constexpr int64_t kPanelSpans = kPanelElements / Rows::kSpan;
template <class Rows>
constexpr int64_t kPanelStride = kPanelSpans<Rows> * kDecoded<Rows>;

/// Does what add_span does for M rows of x and kTileColumns rows of a panel, over `spans` spans.
template <class Rows, int M>
[[gnu::always_inline]] inline void scaled_tile(const float* x, int64_t x_stride, const float* panel,
                                               int64_t spans, Vec* sums) {
  // BEGIN task 2.3.4
  using Arithmetic = typename Rows::Arithmetic;
  constexpr int64_t kStride = kPanelStride<Rows>;
  Vec total[M * kTileColumns];
#pragma GCC unroll 32
  for (int i = 0; i < M * kTileColumns; ++i) total[i] = sums[i];
  for (; spans > 0; --spans, x += kPrepared<Rows>, panel += kDecoded<Rows>) {
    typename Arithmetic::Part part[M][kTileColumns];
#pragma GCC unroll 8
    for (int j = 0; j < Rows::kVectors; ++j) {
      Vec activation[M];
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) activation[m] = load(x + m * x_stride + j * kWidth);
#pragma GCC unroll 8
      for (int n = 0; n < kTileColumns; ++n) {
        Vec weight = load(panel + n * kStride + j * kWidth);
        pin(weight);  // loaded once, not by every product
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          part[m][n] = j == 0 ? Arithmetic::times(weight, activation[m])
                              : Arithmetic::times_plus(weight, activation[m], part[m][n]);
        }
      }
    }
#pragma GCC unroll 8
    for (int n = 0; n < kTileColumns; ++n) {
      Vec scale = Rows::kGroup > 0 ? load(panel + n * kStride + Rows::kVectors * kWidth) : set(1.0f);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m)
        total[m * kTileColumns + n] = fma(Arithmetic::value(part[m][n]),
                                          scaled<Rows>(scale, x + m * x_stride), total[m * kTileColumns + n]);
    }
  }
#pragma GCC unroll 32
  for (int i = 0; i < M * kTileColumns; ++i) sums[i] = total[i];
  // END task 2.3.4
}

/// What turns the sums of a tile into results after its last block.
struct Finish {
  const float* sums;                  // of the groups of the tile's rows of x
  const float* biases[kTileColumns];  // of the groups of its columns
  int64_t groups;
  float* results;  // [M, kBlockColumns]
};

/// A tile's part of one block. Its sums begin as zeros and are kept in `sums` between blocks. The last block
/// has a `finish`, which turns the sums into results while they are still in registers.
template <class Rows, int M>
[[gnu::noinline]] void block_tile(const float* x, int64_t x_stride, const float* panel, int64_t spans,
                                  bool is_first, const Finish* finish, Vec* sums) {
  Vec total[M * kTileColumns] = {};
  if (!is_first) {
#pragma GCC unroll 32
    for (int i = 0; i < M * kTileColumns; ++i) total[i] = sums[i];
  }
  scaled_tile<Rows, M>(x, x_stride, panel, spans, total);
  if (finish == nullptr) {
#pragma GCC unroll 32
    for (int i = 0; i < M * kTileColumns; ++i) sums[i] = total[i];
    return;
  }
  add_biases<M, kTileColumns>(finish->sums, finish->biases, finish->groups, total);
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) sum4(total + m * kTileColumns, finish->results + m * kBlockColumns);
}

/// Decodes spans `first` to `first + count - 1` of up to kPanelColumns columns, starting at `column` of the
/// tile, into panel [kPanelColumns, kPanelStride]. For each whole span it prefetches the same span of the
/// next tile (`prefetch_span`, `bytes_to_next`).
template <class Rows>
void fill_panel(const Rows& rows, const ColumnTile& tile, int64_t column, int64_t groups, int64_t first,
                int64_t count, float* panel) {
  // BEGIN task 2.3.4
  int64_t whole = std::min(first + count, rows.matrix.columns / Rows::kSpan);
  intptr_t ahead = bytes_to_next(rows, tile);
  for (int64_t n = 0; n < std::min(kPanelColumns, rounded_up(tile.count - column, kTileColumns)); ++n) {
    int64_t index = std::min(column + n, tile.count - 1);
    auto row = rows.row(tile.first + index);
    const float* scales = tile.scales + index * groups;
    float* at = panel + n * kPanelStride<Rows>;
    auto keep = [&](const auto& span) {
#pragma GCC unroll 8
      for (int j = 0; j < Rows::kVectors; ++j) store(at + j * kWidth, span.vector(j));
      if constexpr (Rows::kGroup > 0) store(at + Rows::kVectors * kWidth, span.scale());
      at += kDecoded<Rows>;
    };
    for (int64_t span = first; span < whole; ++span) {
      prefetch_span<Rows>(row, span, ahead);
      keep(rows.span(row, span, scales));
    }
    if (whole < first + count) keep(rows.end(row, whole, scales));
  }
  // END task 2.3.4
}

/// Multiplies rows first_row to first_row + num_rows - 1 of x by the columns of a tile, panel by panel.
template <class Rows>
void many_rows(const Rows& rows, const Activations& x, int64_t first_row, int64_t num_rows,
               const ColumnTile& tile, float* panel, Vec* sums) {
  float lines[kBlockRows][kBlockColumns];
  for (int64_t first = 0; first < x.spans; first += kPanelSpans<Rows>) {
    int64_t count = std::min(kPanelSpans<Rows>, x.spans - first);
    bool is_last = first + count == x.spans;
    auto use = [&](auto height, int64_t m, int64_t n, const float* columns) {
      Finish finish{x.sums + (first_row + m) * x.groups, {}, x.groups, lines[m] + n};
      for (int j = 0; j < kTileColumns; ++j)
        finish.biases[j] = tile.biases + std::min(n + j, tile.count - 1) * x.groups;
      block_tile<Rows, height>(x.values + (first_row + m) * x.stride + first * kPrepared<Rows>, x.stride,
                               columns, count, first == 0, is_last ? &finish : nullptr,
                               sums + n * num_rows + m * kTileColumns);  // a tile's sums are contiguous
    };
    for (int64_t column = 0; column < tile.count; column += kPanelColumns) {
      fill_panel(rows, tile, column, x.groups, first, count, panel);
      in_tiles<Rows::Arithmetic::kTileRows>(num_rows, [&](auto height, int64_t m) {
        for (int64_t n = 0; n < std::min(kPanelColumns, tile.count - column); n += kTileColumns)
          use(height, m, column + n, panel + n * kPanelStride<Rows>);
      });
    }
  }
  store_rows(tile.product, first_row, num_rows, tile.first, tile.count, lines[0], kBlockColumns);
}

/// Multiplies all of x by `length` columns, starting at `place`. The thread probably continues at `next`.
template <class Rows>
void compute(ThreadPool& threads, int id, const Activations& x, Place place, Place next, int64_t length) {
  const Matrix& w = place.product->matrix;
  int64_t count = std::min(length, w.rows - place.first);
  ColumnTile tile{*place.product, place.first, count, nullptr, nullptr, next.product->matrix, next.first};
  if constexpr (Rows::kGroup > 0) {
    tile.scales = buffer<float>(threads, id, kScales, count * x.groups + kWidth);
    tile.biases = buffer<float>(threads, id, kBiases, count * x.groups);
    widen_groups(w, w.scales, place.first, count, x.groups, tile.scales);
    widen_groups(w, w.biases, place.first, count, x.groups, tile.biases);
    prefetch_groups(tile.next, next.first, length);
  }
  Rows rows{w};
  if (x.rows <= kFewRows) return few_rows_of(rows, x, tile);
  float* panel = buffer<float>(threads, id, kPanel, kPanelColumns * kPanelStride<Rows>);
  Vec* sums = buffer<Vec>(threads, id, kTotals, kBlockRows * kBlockColumns);
  for (int64_t m = 0; m < x.rows; m += kBlockRows)
    many_rows(rows, x, m, std::min(kBlockRows, x.rows - m), tile, panel, sums);
}

template <class Rows>
void linear_of(ThreadPool& threads, const Tensor& x, const Product* products, int count) {
  Activations acts = prepare<Rows>(threads, x);
  // Tiles are narrow enough to share evenly, and wide enough that taking one costs nothing.
  Items items(products, count, acts.rows <= kFewRows ? kFewColumns : kBlockColumns);
  threads.each(items.count, [&](int id, int64_t item) {
    // Threads that are equally fast take turns.
    Place next = items.at(std::min(item + threads.size(), items.count - 1));
    compute<Rows>(threads, id, acts, items.at(item), next, items.length);
  });
}

template <int kBits, class Arithmetic>
void packed(ThreadPool& threads, const Tensor& x, const Product* products, int count) {
  with_group_size(products[0].matrix, [&](auto group) {
    linear_of<PackedRows<kBits, group, Arithmetic>>(threads, x, products, count);
  });
}

/// float32 activations use float arithmetic. bfloat16 activations are multiplied directly if there is an
/// instruction for it. Otherwise 16-bit activations use products of 16-bit integers, whose error is below the
/// rounding of the output.
template <int kBits>
void packed(ThreadPool& threads, const Tensor& x, const Product* products, int count) {
  if (x.dtype == DType::f32) return packed<kBits, FloatArithmetic>(threads, x, products, count);
  if constexpr (kHasBfloatDots)
    if (x.dtype == DType::bf16) return packed<kBits, BfloatArithmetic>(threads, x, products, count);
  packed<kBits, PairArithmetic>(threads, x, products, count);
}

template <class T>
void dense(ThreadPool& threads, const Tensor& x, const Product* products, int count) {
  if constexpr (std::is_same_v<T, bf16> && kHasBfloatDots)
    if (x.dtype == DType::bf16) return linear_of<DenseRows<T, BfloatArithmetic>>(threads, x, products, count);
  linear_of<DenseRows<T>>(threads, x, products, count);
}

void linear_bytes(ThreadPool& threads, const Tensor& x, const Product* products, int count);

void linear(ThreadPool& threads, const Tensor& x, const Product* products, int count) {
  if (x.size() == 0) return;
  if (products[0].matrix.activation_bits == 8) return linear_bytes(threads, x, products, count);
  switch (products[0].matrix.bits) {
    case 4: return packed<4>(threads, x, products, count);
    case 8: return packed<8>(threads, x, products, count);
    default:
      for (int first = 0, end; first < count; first = end) {  // all of one dtype together
        DType dtype = products[first].matrix.dtype;
        for (end = first + 1; end < count && products[end].matrix.dtype == dtype;) ++end;
        visit(dtype, [&](auto* type) {
          dense<std::remove_pointer_t<decltype(type)>>(threads, x, products + first, end - first);
        });
      }
  }
}

}  // namespace tiny_llm::TINY_ISA
