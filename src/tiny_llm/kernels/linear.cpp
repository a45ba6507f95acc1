// x times the transpose of a matrix, dense or packed, for one row or for thousands.
//
// A block of the matrix has columns in lanes, as it is stored or in a panel. All rows of x are multiplied
// with it while it is in the nearest cache. Every total adds the same numbers in the same order, so a result
// does not depend on the number of rows or their place.
#include <algorithm>
#include <bit>

#include "bytes.h"
#include "column_tile.h"
#include "matrix_tile.h"
#include "panel.h"

namespace tiny_llm::TINY_ISA {

constexpr int64_t kBlockRows = 512;  // whose totals stay in the second cache
// Up to so many rows of x, a thread takes several items at a time: memory is read fastest in long pieces.
constexpr int64_t kRunRows = 64, kLongestRun = 8;
// Rows of bytes from which on matrix registers are faster, and rows whose totals stay in the first cache.
constexpr int64_t kTiledRows = 8, kTiledAtOnce = 128;
constexpr int64_t kAhead = 16384;  // bytes, when one block is read after the other

/// Tiles of many rows, and of few: kRows at most, with N vectors of columns and G groups side by side.
template <class Format>
struct ManyRows {
  static constexpr int kRows = Format::Arithmetic::kTileRows, N = std::max(2, kBlockVectors), G = 1;
};
template <class Format>
struct FewRows {
  static constexpr int kRows = Format::Arithmetic::kIsInteger ? kSizes.few_integer_rows : kSizes.few_rows;
  // Sums of bytes are short, and with one group a tile reads memory in order.
  static constexpr bool kIsByte = sizeof(typename Format::Element) == 1;
  static constexpr int N = kBlockVectors, G = kIsByte ? 1 : std::max(1, 4 / kBlockVectors);
};

/// Calls use(height, first) for tiles of kHeight rows, then for lower ones of what is left.
template <int kHeight, class Use>
void in_heights(int64_t num_rows, const Use& use, int64_t row = 0) {
  for (; row + kHeight <= num_rows; row += kHeight) use(std::integral_constant<int, kHeight>(), row);
  if constexpr (kHeight > 1) in_heights<std::bit_floor(kHeight - 1u)>(num_rows, use, row);
}

/// Calls use(rows, first) for rows that fill matrix registers, then for those that are left.
template <class Use>
void in_registers(int64_t num_rows, const Use& use) {
  for (int64_t row = 0, some; row < num_rows; row += some) {
    some = std::min(kTiledAtOnce, num_rows - row);
    if (some > kTileHeight) some = some / kTileHeight * kTileHeight;
    use(some, row);
  }
}

/// The words of N vectors of a product's columns: the matrix itself, if it is in blocks, or a panel.
template <class Format, int N>
struct Words {
  static constexpr int64_t kOfGroup = Format::kGroup / Format::kPerWord;
  static constexpr int kBlocks = N / kBlockVectors;
  const Matrix& w;
  RowBytes rows;
  int64_t most = w.columns, stride;  // groups at a time, vectors from block to block
  WordVec* panel = nullptr;

  Words(ThreadPool& threads, int id, Place place) : w(place.product->matrix) {
    int64_t bytes = w.columns * 4 / Format::kPerWord;
    const char* first = static_cast<const char*>(w.data) + place.first * bytes;
    rows = {first, bytes, w.rows - place.first, !Format::kHasScales};
    stride = bytes / 4 * kBlockVectors;
    if (w.in_blocks) return;
    most = std::max<int64_t>(1, kPanelWords / kOfGroup / kBlocks);
    stride = rounded_up(most * kOfGroup, kWidth) * kBlockVectors;
    panel = buffer<WordVec>(threads, id, kPanel, kBlocks * stride);
  }

  /// Those of groups `first` to `first + count - 1`; `count` is at most `most`.
  const WordVec* of(int64_t first, int64_t count) const {
    if (w.in_blocks) return reinterpret_cast<const WordVec*>(rows.data) + first * kOfGroup * kBlockVectors;
    for (int b = 0; b < kBlocks; ++b)
      fill_panel(rows, b * kBlockColumns, first * kOfGroup, count * kOfGroup, N * kWidth, panel + b * stride);
    return panel;
  }
};

/// Multiplies rows `row` to `row + count - 1` of a product by the columns of a tile, from `place` on.
template <class Format, template <class> class Tile>
void multiply_rows(ThreadPool& threads, int id, const Activations& x, int64_t row, int64_t count, Place place,
                   const Vec* scales, const Vec* biases) {
  constexpr int N = Tile<Format>::N, G = Tile<Format>::G;
  Words<Format, N> words(threads, id, place);
  auto* totals = buffer<Vec>(threads, id, kTotals, kBlockRows * N);
  std::fill_n(totals, count * N, Vec{});
  for (int64_t g = 0; g < x.groups; g += words.most) {
    TileInput in{.stride = x.stride, .x_groups = x.groups, .panel_stride = words.stride};
    in.groups = std::min(words.most, x.groups - g), in.panel = words.of(g, in.groups);
    in.scales = scales + g * kBlockVectors, in.biases = biases + g * kBlockVectors;
    auto from = [&](int64_t m) {
      int64_t of_x = place.product->first + row + m, at = of_x * x.groups + g;
      in.words = x.words + of_x * x.stride + g * (Format::kGroup / Format::kPerLane);
      in.x_scales = x.scales + at * Format::kActs, in.sums = x.sums + at;
      // Only the first rows read the matrix from memory.
      bool is_first = words.w.in_blocks && row + m == 0;
      in.ahead = !is_first ? 0 : N == kBlockVectors ? kAhead : N * kWidth * words.rows.bytes;
      return in;
    };
    if constexpr (kHasTiles<Format>) {
      if (!Format::Arithmetic::kIsInteger || count >= kTiledRows) {
        in_registers(count, [&](int64_t some, int64_t m) {
          multiply_in_registers<Format, N>(from(m), some, totals + m * N);
        });
        continue;
      }
    }
    in_heights<Tile<Format>::kRows>(count, [&](auto height, int64_t m) {
      TileInput rest = multiply<Format, height, N, G>(from(m), totals + m * N);
      if constexpr (G > 1) multiply<Format, height, N, 1>(rest, totals + m * N);
    });
  }
  int64_t kept = std::min<int64_t>(N * kWidth, words.w.rows - place.first);
  store_rows(*place.product, row, count, place.first, kept, reinterpret_cast<float*>(totals), N * kWidth);
}

/// Multiplies all rows of a product by the columns of an item, as many at a time as a tile has.
template <class Format, template <class> class Tile>
void multiply_columns(ThreadPool& threads, int id, const Activations& x, Place place) {
  constexpr int N = Tile<Format>::N, kBlocks = N / kBlockVectors;
  const Matrix& w = place.product->matrix;
  Vec *scales = nullptr, *biases = nullptr;
  int64_t end = std::min(place.first + kItemColumns, w.rows), rows = place.product->out.shape[0];
  for (; place.first < end; place.first += N * kWidth) {
    if constexpr (Format::kHasScales) {
      scales = buffer<Vec>(threads, id, kScales, x.groups * N);
      biases = buffer<Vec>(threads, id, kBiases, x.groups * N);
      lay_out_groups(w, w.scales, place.first, kBlocks, scales);
      lay_out_groups(w, w.biases, place.first, kBlocks, biases);
    }
    for (int64_t row = 0; row < rows; row += kBlockRows)
      multiply_rows<Format, Tile>(threads, id, x, row, std::min(kBlockRows, rows - row), place, scales,
                                  biases);
  }
}

template <class Format>
void linear_of(ThreadPool& threads, const Tensor& x, const Product* products, int count) {
  Activations acts = prepare<Format>(threads, x);
  Items items(products, count, kItemColumns);
  int64_t most = 0;
  for (int i = 0; i < count; ++i) most = std::max(most, products[i].out.shape[0]);
  int64_t longest = most <= kRunRows ? kLongestRun : 1;
  int64_t run = std::clamp<int64_t>(items.count / (4 * threads.size()), 1, longest);
  threads.each((items.count + run - 1) / run, [&](int id, int64_t number) {
    for (int64_t item = number * run; item < std::min(items.count, (number + 1) * run); ++item) {
      Place place = items.at(item);
      if (place.product->out.shape[0] <= FewRows<Format>::kRows)
        multiply_columns<Format, FewRows>(threads, id, acts, place);
      else
        multiply_columns<Format, ManyRows>(threads, id, acts, place);
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
