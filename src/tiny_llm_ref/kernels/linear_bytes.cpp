// x, rounded to bytes, times the transpose of a packed matrix, for one row or for thousands.
//
// A panel has a block of the matrix with columns in lanes. All rows of x are multiplied with it while it is
// in the nearest cache.
#include <algorithm>

#include "byte_tile.h"

namespace tiny_llm::TINY_ISA {

constexpr int64_t kByteRows = 512;    // whose totals stay in the second cache
constexpr int64_t kByteColumns = 64;  // of an item: a cache line of them and more, on every instruction set

/// All rows of x as bytes, in buffers of thread 0.
template <class Format>
ByteRows prepare_bytes(ThreadPool& threads, const Tensor& x) {
  int64_t columns = x.shape[1], groups = columns / Format::kGroup, count = x.shape[0] * groups;
  // Rows a power of two apart would be mapped to the same sets of the cache.
  int64_t stride = columns / 4 + 16;
  auto* words = buffer<uint32_t>(threads, 0, kValues, x.shape[0] * stride);
  float* sums = buffer<float>(threads, 0, kSums, count * (1 + Format::kActs));
  each_row(threads, x.shape[0], columns, [&](int, int64_t m) {
    float line[Format::kGroup];
    for (int64_t g = 0; g < groups; ++g) {
      int64_t first = g * Format::kGroup, at = m * groups + g;
      widen(x.data, x.dtype, m * x.stride[0] + first, Format::kGroup, Format::kGroup, line);
      auto* bytes = reinterpret_cast<int8_t*>(words + m * stride) + first;
      for (int act = 0; act < Format::kActs; ++act, bytes += Format::kAct)
        sums[count + at * Format::kActs + act] = to_bytes(line + act * Format::kAct, Format::kAct, bytes);
      Vec total{};
      for (int k = 0; k < Format::kGroup; k += kWidth) total += load(line + k);
      sums[at] = sum(total);
    }
  });
  return {words, sums + count, sums, x.shape[0], stride, groups};
}

/// Multiplies rows `row` to `row + count - 1` of x by N vectors of a product's columns, from `first` on,
/// panel by panel.
template <class Format, int N>
void multiply_rows(ThreadPool& threads, int id, const ByteRows& x, int64_t row, int64_t count,
                   const Product& product, int64_t first, const Vec* scales, const Vec* biases) {
  const Matrix& w = product.matrix;
  int64_t row_bytes = w.columns * w.bits / 8;
  RowBytes rows{static_cast<const char*>(w.data) + first * row_bytes, row_bytes, w.rows - first};
  // One or two rows compute little between two reads of memory: the fewer words, the steadier they are.
  constexpr int64_t kMost = std::max<int64_t>(1, (N == 1 ? 32 : kPanelWords) / Format::kGroupWords);
  auto* panel = buffer<WordVec>(threads, id, kPanel, (kPanelWords + kWidth) * N);
  auto* totals = buffer<Vec>(threads, id, kTotals, kByteRows * N);
  std::fill_n(totals, count * N, Vec{});
  for (int64_t g = 0; g < x.groups; g += kMost) {
    int64_t groups = std::min(kMost, x.groups - g);
    fill_panel<N>(rows, g * Format::kGroupWords, groups * Format::kGroupWords, panel);
    in_tiles<kSizes.byte_rows>(count, [&](auto height, int64_t m) {
      int64_t at = (row + m) * x.groups + g;
      ByteBlock block{x.words + (row + m) * x.stride + g * (Format::kGroup / 4),
                      x.stride,
                      x.scales + at * Format::kActs,
                      x.sums + at,
                      x.groups,
                      panel,
                      scales + g * N,
                      biases + g * N,
                      groups};
      multiply_bytes<Format, height, N>(block, totals + m * N);
    });
  }
  int64_t kept = std::min<int64_t>(N * kWidth, w.rows - first);
  store_rows(product, row, count, first, kept, reinterpret_cast<float*>(totals), N * kWidth);
}

/// Multiplies all of x by `count` columns of a product, N vectors of them at a time.
template <class Format, int N>
void multiply_columns(ThreadPool& threads, int id, const ByteRows& x, const Product& product, int64_t first,
                      int64_t count) {
  const Matrix& w = product.matrix;
  auto* scales = buffer<Vec>(threads, id, kScales, x.groups * N);
  auto* biases = buffer<Vec>(threads, id, kBiases, x.groups * N);
  constexpr int64_t kStep = N * kWidth;
  for (int64_t end = first + count; first < end; first += kStep) {
    lay_out_groups<N>(w, w.scales, first, scales);
    lay_out_groups<N>(w, w.biases, first, biases);
    for (int64_t row = 0; row < x.rows; row += kByteRows)
      multiply_rows<Format, N>(threads, id, x, row, std::min(kByteRows, x.rows - row), product, first, scales,
                               biases);
  }
}

template <class Format>
void linear_of_bytes(ThreadPool& threads, const Tensor& x, const Product* products, int count) {
  ByteRows bytes = prepare_bytes<Format>(threads, x);
  Items items(products, count, kByteColumns);
  // Few rows wait for memory, which is read fastest in long pieces.
  int64_t run = std::clamp<int64_t>(items.count / (4 * threads.size()), 1, bytes.rows <= kFewRows ? 8 : 1);
  threads.each((items.count + run - 1) / run, [&](int id, int64_t number) {
    for (int64_t item = number * run; item < std::min(items.count, (number + 1) * run); ++item) {
      auto [product, first] = items.at(item);
      int64_t columns = std::min(kByteColumns, product->matrix.rows - first);
      if (bytes.rows <= 2)
        multiply_columns<Format, 1>(threads, id, bytes, *product, first, columns);
      else
        multiply_columns<Format, kSizes.byte_vectors>(threads, id, bytes, *product, first, columns);
    }
  });
}

void linear_bytes(ThreadPool& threads, const Tensor& x, const Product* products, int count) {
  with_group_size(products[0].matrix, [&](auto group) {
    if (products[0].matrix.bits == 4)
      linear_of_bytes<PackedBytes<4, group>>(threads, x, products, count);
    else
      linear_of_bytes<PackedBytes<8, group>>(threads, x, products, count);
  });
}

}  // namespace tiny_llm::TINY_ISA
