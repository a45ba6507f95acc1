// x times the transpose of a matrix, dense or packed, for one row or for thousands.
//
// A block of the matrix has columns in lanes, as it is stored or in a panel. All rows of x are multiplied
// with it while it is in the nearest cache. Every total adds the same numbers in the same order, so a result
// does not depend on the number of rows or their place.
#include <algorithm>
#include <bit>

#include "bytes.h"
#include "column_tile.h"
#include "panel.h"

namespace tiny_llm::TINY_ISA {

constexpr int64_t kBlockRows = 512;                       // whose totals stay in the second cache
constexpr int kManyVectors = std::max(2, kBlockVectors);  // of columns in a tile
constexpr int kFewGroups =
    std::max(1, 4 / kBlockVectors);  // side by side in a tile of few rows and one block
constexpr int64_t kAhead = 16384;    // bytes that few rows prefetch of what they read in order
// Up to so many rows of x, a thread takes several items at a time: memory is read fastest in long pieces.
constexpr int64_t kRunRows = 64, kLongestRun = 8;

/// Where a call with few rows ends: up to here a tile has one block of columns, and kFewGroups groups.
template <class Format>
constexpr int64_t kFewRows = Format::Arithmetic::kIsInteger ? kSizes.few_integer_rows : kSizes.few_rows;

/// Calls use(height, first) for tiles of kHeight rows, then for lower ones of what is left.
template <int kHeight, class Use>
void in_heights(int64_t num_rows, const Use& use, int64_t row = 0) {
  for (; row + kHeight <= num_rows; row += kHeight) use(std::integral_constant<int, kHeight>(), row);
  if constexpr (kHeight > 1) in_heights<std::bit_floor(kHeight - 1u)>(num_rows, use, row);
}

/// Multiplies rows `row` to `row + count - 1` of x by N vectors of a product's columns, from `first` on.
template <class Format, int N, int G>
void multiply_rows(ThreadPool& threads, int id, const Activations& x, int64_t row, int64_t count, Place place,
                   const Vec* scales, const Vec* biases) {
  constexpr int kBlocks = N / kBlockVectors;
  constexpr int64_t kGroupWords = Format::kGroup / Format::kPerWord, kColumns = N * kWidth;
  const Matrix& w = place.product->matrix;
  int64_t row_bytes = w.columns * 4 / Format::kPerWord;
  const char* data = static_cast<const char*>(w.data) + place.first * row_bytes;
  RowBytes rows{data, row_bytes, w.rows - place.first, !Format::kHasScales};
  int64_t most = w.in_blocks ? x.groups : std::max<int64_t>(1, kPanelWords / kGroupWords / kBlocks);
  int64_t stride =
      w.in_blocks ? row_bytes / 4 * kBlockVectors : rounded_up(most * kGroupWords, kWidth) * kBlockVectors;
  auto* panel = w.in_blocks ? nullptr : buffer<WordVec>(threads, id, kPanel, kBlocks * stride);
  int64_t ahead = !w.in_blocks ? 0 : G > 1 ? kAhead : kColumns * row_bytes;
  auto* totals = buffer<Vec>(threads, id, kTotals, kBlockRows * N);
  std::fill_n(totals, count * N, Vec{});
  for (int64_t g = 0; g < x.groups; g += most) {
    int64_t groups = std::min(most, x.groups - g);
    for (int b = 0; b < kBlocks && !w.in_blocks; ++b)
      fill_panel(rows, b * kBlockColumns, g * kGroupWords, groups * kGroupWords, kColumns,
                 panel + b * stride);
    auto tile = [&](auto height, auto side_by_side, int64_t m, int64_t first, int64_t count) {
      int64_t at = (row + m) * x.groups + g + first;
      const WordVec* words = w.in_blocks ? reinterpret_cast<const WordVec*>(data) : panel;
      multiply<Format, height, N, side_by_side>(
          {x.words + (row + m) * x.stride + (g + first) * (Format::kGroup / Format::kPerLane), x.stride,
           x.scales + at * Format::kActs, x.sums + at, x.groups, words + first * kGroupWords * kBlockVectors,
           stride, scales + (g + first) * kBlockVectors, biases + (g + first) * kBlockVectors, count,
           row + m == 0 ? ahead : 0},
          totals + m * N);
    };
    using One = std::integral_constant<int, 1>;
    in_heights<(G > 1 ? kFewRows<Format> : Format::Arithmetic::kTileRows)>(
        count, [&](auto height, int64_t m) {
          int64_t rest = groups % G;
          if (groups > rest) tile(height, std::integral_constant<int, G>(), m, 0, groups - rest);
          if (rest > 0) tile(height, One(), m, groups - rest, rest);
        });
  }
  int64_t kept = std::min<int64_t>(kColumns, w.rows - place.first);
  store_rows(*place.product, row, count, place.first, kept, reinterpret_cast<float*>(totals), kColumns);
}

/// Multiplies all of x by the columns of an item, N vectors of them at a time.
template <class Format, int N, int G>
void multiply_columns(ThreadPool& threads, int id, const Activations& x, Place place) {
  const Matrix& w = place.product->matrix;
  constexpr int kBlocks = N / kBlockVectors;
  Vec *scales = nullptr, *biases = nullptr;
  for (int64_t end = std::min(place.first + kItemColumns, w.rows); place.first < end;
       place.first += N * kWidth) {
    if constexpr (Format::kHasScales) {
      scales = buffer<Vec>(threads, id, kScales, x.groups * N);
      biases = buffer<Vec>(threads, id, kBiases, x.groups * N);
      lay_out_groups(w, w.scales, place.first, kBlocks, scales);
      lay_out_groups(w, w.biases, place.first, kBlocks, biases);
    }
    for (int64_t row = 0; row < x.rows; row += kBlockRows)
      multiply_rows<Format, N, G>(threads, id, x, row, std::min(kBlockRows, x.rows - row), place, scales,
                                  biases);
  }
}

template <class Format>
void linear_of(ThreadPool& threads, const Tensor& x, const Product* products, int count) {
  Activations acts = prepare<Format>(threads, x);
  Items items(products, count, kItemColumns);
  bool is_few = acts.rows <= kFewRows<Format>;
  int64_t run =
      std::clamp<int64_t>(items.count / (4 * threads.size()), 1, acts.rows <= kRunRows ? kLongestRun : 1);
  threads.each((items.count + run - 1) / run, [&](int id, int64_t number) {
    for (int64_t item = number * run; item < std::min(items.count, (number + 1) * run); ++item) {
      if (is_few)
        multiply_columns<Format, kBlockVectors, kFewGroups>(threads, id, acts, items.at(item));
      else
        multiply_columns<Format, kManyVectors, 1>(threads, id, acts, items.at(item));
    }
  });
}

template <int kBits, class Arithmetic>
void packed(ThreadPool& threads, const Tensor& x, const Product* products, int count) {
  with_group_size(products[0].matrix, [&](auto group) {
    linear_of<Packed<kBits, group, Arithmetic>>(threads, x, products, count);
  });
}

/// float32 activations use float arithmetic. bfloat16 activations are multiplied directly if there is an
/// instruction for it. Otherwise 16-bit activations use products of 16-bit integers, whose error is below the
/// rounding of the output.
template <int kBits>
void packed(ThreadPool& threads, const Tensor& x, const Product* products, int count) {
  if (products[0].matrix.activation_bits == 8)
    return packed<kBits, ByteArithmetic<kBits>>(threads, x, products, count);
  if (x.dtype == DType::f32) return packed<kBits, FloatArithmetic>(threads, x, products, count);
  if constexpr (kHasBfloatDots)
    if (x.dtype == DType::bf16) return packed<kBits, BfloatArithmetic>(threads, x, products, count);
  packed<kBits, PairArithmetic>(threads, x, products, count);
}

template <class T>
void dense(ThreadPool& threads, const Tensor& x, const Product* products, int count) {
  if constexpr (std::is_same_v<T, bf16> && kHasBfloatDots)
    if (x.dtype == DType::bf16) return linear_of<Dense<T, BfloatArithmetic>>(threads, x, products, count);
  linear_of<Dense<T>>(threads, x, products, count);
}

void linear(ThreadPool& threads, const Tensor& x, const Product* products, int count) {
  if (x.size() == 0) return;
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
