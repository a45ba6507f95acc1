// x times the transpose of a matrix, dense or packed, for one row and for thousands.
//
// Few rows: every weight is decoded in registers and used at once; the memory is the limit. Many rows: a panel
// of weights is decoded into the cache once and multiplied with all rows in tiles; arithmetic is the limit.
// Both add the same numbers in the same order, so neither the number of rows nor their place shows in a result.
#include <algorithm>

#include "tiles.h"
#include "weights.h"

namespace tiny_llm::TINY_ISA {

constexpr int kColumnsAtOnce = 4;               // sums whose additions overlap
constexpr int kFewRows = 2;                     // up to here decoding twice is cheaper than a panel
constexpr int64_t kBlockRows = 48, kBlockColumns = 32, kBlockElements = 512;  // what the caches hold
constexpr int64_t kStripColumns = 8;
constexpr int64_t kFewColumns = 128;  // columns that are taken at a time when there are few rows

/// The activations of one call, as floats in the order of the matrix's vectors.
struct Activations {
  const float* values;  // [M, stride], each row followed by zeros up to `padded`, a whole span
  const float* sums;    // [M, groups], the sum of each group, which its bias multiplies
  int64_t rows, padded, stride, groups;
};

/// A stretch of one product's columns, with the scales and biases of its rows as floats.
struct Stretch {
  const Product& product;
  int64_t first, count;
  float *scales, *biases;  // [count, groups]
};

template <class Rows>
void prepare_row(const Tensor& x, int64_t row, float* values, float* sums, const Activations& shape) {
  int64_t columns = x.shape[1];
  for (int64_t first = 0; first < shape.padded; first += Rows::kSpan) {
    float plain[Rows::kSpan];
    widen(x.data, x.dtype, row * x.stride[0] + first, std::min<int64_t>(Rows::kSpan, columns - first),
          Rows::kSpan, plain);
    for (int k = 0; k < Rows::kSpan; ++k) values[first + Rows::place(k)] = plain[k] * Rows::factor(k);
    if constexpr (Rows::kGroup > 0) {
      constexpr int kPiece = Rows::kGroup < Rows::kSpan ? Rows::kGroup : Rows::kSpan;
      for (int piece = 0; piece < Rows::kSpan; piece += kPiece) {
        Vec total{};
        for (int k = 0; k < kPiece; k += kWidth) total += load(plain + piece + k);
        int64_t group = (first + piece) / Rows::kGroup;
        if (group < shape.groups) sums[group] = ((first + piece) % Rows::kGroup ? sums[group] : 0.0f) + sum(total);
      }
    }
  }
}

/// The sum over all columns of one row of x and one row of the matrix is finished by the biases' share.
inline Vec with_biases(Vec total, const float* biases, const float* sums, int64_t groups) {
  for (int64_t g = 0; g < groups; g += kWidth) total = fma(load(biases + g), load(sums + g), total);
  return total;
}

/// Round a line of results to the output's dtype, after the layer's bias.
inline void put(const Product& product, int64_t row, int64_t first, int64_t count, float* line) {
  const Tensor& bias = product.bias;
  if (bias.data != nullptr) {
    float addend[kFewColumns];
    widen(bias.data, bias.dtype, first, count, rounded_up(count, kWidth), addend);
    for (int64_t i = 0; i < count; ++i) line[i] += addend[i];
  }
  narrow(line, count, product.out, row * product.out.stride[0] + first);
}

/// Add one span's products to the sums of M rows of x and N of the matrix: total += scale * sum(weight * x).
/// The N sums of a vector are independent, so that an addition need not wait for the one before it.
template <class Rows, int M, int N, class Span>
inline void add_span(const Span* spans, const float* x, int64_t width, Vec (*total)[N]) {
  // BEGIN task 2.3.3
  throw std::runtime_error("task 2.3.3");
  // END task 2.3.3
}

/// `M` rows of x times kColumnsAtOnce rows of the matrix from `column` of the stretch on, decoded in registers.
template <class Rows, int M>
void few_rows(const Rows& rows, const Activations& x, const Stretch& part, int64_t column, float (*lines)[kFewColumns]) {
  constexpr int N = kColumnsAtOnce;
  int64_t whole = rows.matrix.columns / Rows::kSpan;
  decltype(rows.row(0)) row[N];
  const float *scales[N], *biases[N];
  for (int n = 0; n < N; ++n) {
    int64_t index = std::min(column + n, part.count - 1);  // beyond the end the last one is computed again
    row[n] = rows.row(part.first + index);
    scales[n] = part.scales + index * x.groups;
    biases[n] = part.biases + index * x.groups;
  }
  Vec total[M][N];
#pragma GCC unroll 8
  for (int i = 0; i < M * N; ++i) total[i / N][i % N] = Vec{};
  for (int64_t span = 0; span < whole; ++span) {
    typename Rows::Span spans[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) spans[n] = rows.span(row[n], span, scales[n]);
    add_span<Rows, M, N>(spans, x.values + span * Rows::kSpan, x.stride, total);
  }
  if (whole * Rows::kSpan < rows.matrix.columns) {
    typename Rows::End spans[N];
    for (int n = 0; n < N; ++n) spans[n] = rows.end(row[n], whole, scales[n]);
    add_span<Rows, M, N>(spans, x.values + whole * Rows::kSpan, x.stride, total);
  }
  for (int m = 0; m < M; ++m) {
    for (int n = 0; n < N; ++n)
      total[m][n] = with_biases(total[m][n], biases[n], x.sums + m * x.groups, x.groups);
    sum4(total[m], lines[m] + column);
  }
}

/// A decoded span in a panel: its vectors, then their scale.
template <class Rows>
constexpr int64_t kDecoded = (Rows::kVectors + (Rows::kGroup > 0)) * kWidth;

/// The same as add_span for M rows of x and kTileColumns rows of a panel, over `spans` spans.
template <class Rows, int M>
void scaled_tile(const float* x, int64_t width, const float* panel, int64_t stride, int64_t spans, Vec* sums) {
  // BEGIN task 2.3.4
  throw std::runtime_error("task 2.3.4");
  // END task 2.3.4
}

/// Decode spans first to first + count of a stretch's rows into panel [columns, stride].
template <class Rows>
void fill_panel(const Rows& rows, const Stretch& part, int64_t groups, int64_t first, int64_t count,
                float* panel, int64_t stride) {
  // BEGIN task 2.3.4
  throw std::runtime_error("task 2.3.4");
  // END task 2.3.4
}

/// Rows first_row to first_row + num_rows of x times a stretch of columns, by panels and tiles.
template <class Rows>
void many_rows(const Rows& rows, const Activations& x, int64_t first_row, int64_t num_rows, const Stretch& part,
               float* panel, Vec* sums) {
  int64_t columns = rounded_up(part.count, kTileColumns);
  std::fill_n(sums, num_rows * columns, Vec{});
  // A strip of the panel stays in the nearest cache while all rows of x go by.
  auto each_tile = [&](auto use) {
    for (int64_t strip = 0; strip < columns; strip += kStripColumns)
      in_tiles(num_rows, [&](auto height, int64_t m) {
        for (int64_t n = strip; n < std::min(strip + kStripColumns, columns); n += kTileColumns)
          use(height, m, n, sums + n * num_rows + m * kTileColumns);  // a tile's sums stand together
      });
  };
  constexpr int64_t kSpans = kBlockElements / Rows::kSpan, kStride = kSpans * kDecoded<Rows>;
  int64_t spans = x.padded / Rows::kSpan;
  for (int64_t first = 0; first < spans; first += kSpans) {
    int64_t count = std::min(kSpans, spans - first);
    fill_panel(rows, part, x.groups, first, count, panel, kStride);
    each_tile([&](auto height, int64_t m, int64_t n, Vec* at) {
      scaled_tile<Rows, height>(x.values + (first_row + m) * x.stride + first * Rows::kSpan, x.stride,
                                panel + n * kStride, kStride, count, at);
    });
  }
  float lines[kBlockRows][kBlockColumns];
  each_tile([&](auto height, int64_t m, int64_t n, Vec* at) {
    for (int i = 0; i < height; ++i) {
      for (int j = 0; j < kTileColumns; ++j)
        at[i * kTileColumns + j] =
            with_biases(at[i * kTileColumns + j], part.biases + std::min(n + j, part.count - 1) * x.groups,
                        x.sums + (first_row + m + i) * x.groups, x.groups);
      sum4(at + i * kTileColumns, lines[m + i] + n);
    }
  });
  for (int64_t m = 0; m < num_rows; ++m) put(part.product, first_row + m, part.first, part.count, lines[m]);
}

/// The scales or biases of a stretch as floats, [count, padded].
inline void widen_groups(const Matrix& w, const void* data, int64_t first, int64_t count, int64_t padded, float* out) {
  int64_t groups = w.columns / w.group_size;
  if (groups == padded) return widen(data, w.dtype, first * groups, count * groups, count * groups, out);
  for (int64_t n = 0; n < count; ++n) widen(data, w.dtype, (first + n) * groups, groups, padded, out + n * padded);
}

/// All of x times one stretch of columns.
template <class Rows>
void compute(Team& team, int id, const Activations& x, const Product& product, int64_t first, int64_t count) {
  const Matrix& w = product.matrix;
  Stretch part{product, first, count, nullptr, nullptr};
  if constexpr (Rows::kGroup > 0) {
    part.scales = buffer<float>(team, id, kScales, count * x.groups);
    part.biases = buffer<float>(team, id, kBiases, count * x.groups);
    widen_groups(w, w.scales, first, count, x.groups, part.scales);
    widen_groups(w, w.biases, first, count, x.groups, part.biases);
  }
  Rows rows{w};
  if (x.rows <= kFewRows) {
    float lines[kFewRows][kFewColumns];
    for (int64_t n = 0; n < count; n += kColumnsAtOnce)
      x.rows == 1 ? few_rows<Rows, 1>(rows, x, part, n, lines) : few_rows<Rows, 2>(rows, x, part, n, lines);
    for (int64_t m = 0; m < x.rows; ++m) put(product, m, first, count, lines[m]);
    return;
  }
  float* panel = buffer<float>(team, id, kPanel, 2 * kBlockColumns * kBlockElements);
  Vec* sums = buffer<Vec>(team, id, kTotals, kBlockRows * kBlockColumns);
  for (int64_t m = 0; m < x.rows; m += kBlockRows)
    many_rows(rows, x, m, std::min(kBlockRows, x.rows - m), part, panel, sums);
}

template <class Rows>
void linear_of(Team& team, const Tensor& x, const Product* products, int count) {
  int64_t padded = rounded_up(x.shape[1], Rows::kSpan);
  // Rows that stood a power of two apart would compete for the same places of the cache.
  Activations acts{nullptr, nullptr, x.shape[0], padded, padded + 16, 0};
  if constexpr (Rows::kGroup > 0) acts.groups = rounded_up(acts.padded / Rows::kGroup, kWidth);
  float* values = buffer<float>(team, 0, kValues, acts.rows * acts.stride);
  float* sums = buffer<float>(team, 0, kSums, acts.rows * acts.groups);
  acts.values = values, acts.sums = sums;
  team.each(acts.rows, [&](int, int64_t m) {
    std::fill_n(sums + m * acts.groups, acts.groups, 0.0f);
    prepare_row<Rows>(x, m, values + m * acts.stride, sums + m * acts.groups, acts);
  });
  // Stretches short enough to share evenly, long enough that taking one costs nothing.
  int64_t length = acts.rows <= kFewRows ? kFewColumns : kBlockColumns, items = 0;
  for (int i = 0; i < count; ++i) items += (products[i].matrix.rows + length - 1) / length;
  team.each(items, [&](int id, int64_t item) {
    const Product* product = products;
    for (int64_t own; item >= (own = (product->matrix.rows + length - 1) / length); ++product) item -= own;
    int64_t first = item * length;
    compute<Rows>(team, id, acts, *product, first, std::min(length, product->matrix.rows - first));
  });
}

template <int kBits>
void packed(Team& team, const Tensor& x, const Product* products, int count) {
  switch (products[0].matrix.group_size) {
    case 32: return linear_of<PackedRows<kBits, 32>>(team, x, products, count);
    case 64: return linear_of<PackedRows<kBits, 64>>(team, x, products, count);
    case 128: return linear_of<PackedRows<kBits, 128>>(team, x, products, count);
    default: throw std::invalid_argument("group_size must be 32, 64 or 128");
  }
}

void linear(Team& team, const Tensor& x, const Product* products, int count) {
  if (x.size() == 0) return;
  switch (products[0].matrix.bits) {
    case 4: return packed<4>(team, x, products, count);
    case 8: return packed<8>(team, x, products, count);
    case 0:
      return visit(products[0].matrix.dtype, [&](auto* type) {
        linear_of<DenseRows<std::remove_pointer_t<decltype(type)>>>(team, x, products, count);
      });
    default: throw std::invalid_argument("bits must be 4 or 8");
  }
}

}  // namespace tiny_llm::TINY_ISA
