// x times the transpose of a matrix, dense or packed, for one row and for thousands.
//
// Few rows: every weight is decoded in registers and used at once; the memory is the limit. Many rows: a panel
// of weights is decoded into the cache once and multiplied with all rows in tiles; arithmetic is the limit.
// Both add the same numbers in the same order, so neither the number of rows nor their place shows in a result.
#include <algorithm>

#include "activations.h"

namespace tiny_llm::TINY_ISA {

constexpr int kFewRows = 8;  // up to here decoding in registers is cheaper than a panel
constexpr int64_t kBlockRows = 48, kBlockColumns = 32, kBlockElements = 1024;  // what the caches hold
constexpr int64_t kStripColumns = 8;
constexpr int64_t kFewColumns = 128;  // columns that are taken at a time when there are few rows

/// A stretch of one product's columns, with the scales and biases of its rows as floats.
struct Stretch {
  const Product& product;
  int64_t first, count;
  float *scales, *biases;  // [count, groups]
};

/// Round a line of results to the output's dtype, after the layer's bias and the residual.
inline void put(const Product& product, int64_t row, int64_t first, int64_t count, float* line) {
  auto add = [&](const Tensor& t, int64_t at) {
    if (t.data == nullptr) return;
    float addend[kFewColumns];
    widen(t.data, t.dtype, at, count, rounded_up(count, kWidth), addend);
    for (int64_t i = 0; i < count; ++i) line[i] += addend[i];
  };
  add(product.bias, first);
  add(product.residual, row * product.residual.stride[0] + first);
  narrow(line, count, product.out, row * product.out.stride[0] + first);
}

/// The factor of a span's sum: the weights' scale, and that of the activations if they are integers.
template <class Rows>
inline Vec scaled(Vec scale, const float* x) {
  return Rows::Arithmetic::kIsFixed ? scale * load(x + Rows::kVectors * kWidth) : scale;
}

/// Add one span's products to the sums of M rows of x and N of the matrix: total += scale * sum(weight * x).
/// The N sums of a vector are independent, so that an addition need not wait for the one before it.
template <class Rows, int M, int N, class Span>
inline void add_span(const Span* spans, const float* x, int64_t stride, Vec (*total)[N]) {
  // BEGIN task 2.3.3
  using Arithmetic = typename Rows::Arithmetic;
  typename Arithmetic::Part part[M][N];
#pragma GCC unroll 8
  for (int j = 0; j < Rows::kVectors; ++j)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      Vec weight = spans[n].vector(j);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        Vec activation = load(x + m * stride + j * kWidth);
        part[m][n] = j == 0 ? Arithmetic::times(weight, activation)
                            : Arithmetic::times_plus(weight, activation, part[m][n]);
      }
    }
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
    Vec scale = spans[n].scale();
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
      total[m][n] = fma(Arithmetic::value(part[m][n]), scaled<Rows>(scale, x + m * stride), total[m][n]);
  }
  // END task 2.3.3
}

/// The sums of M rows of x and N rows of the matrix are finished by the biases' share, which is read once for all of
/// them.
template <int M, int N>
void add_biases(const float* sums, const float* const* biases, int64_t groups, Vec* totals) {
  Vec total[M * N];
#pragma GCC unroll 24
  for (int i = 0; i < M * N; ++i) total[i] = totals[i];
  for (int64_t g = 0; g < groups; g += kWidth)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      Vec bias = load(biases[n] + g);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) total[m * N + n] = fma(bias, load(sums + m * groups + g), total[m * N + n]);
    }
#pragma GCC unroll 24
  for (int i = 0; i < M * N; ++i) totals[i] = total[i];
}

/// `M` rows of x from `first_row` on times N rows of the matrix, decoded in registers: `column` of the stretch and those
/// at distances of `apart`. Each of them is a long piece of memory to be read on from, which a CPU foresees best.
template <class Rows, int M, int N>
void few_rows(const Rows& rows, const Activations& x, int64_t first_row, const Stretch& part, int64_t column,
              int64_t apart, float (*lines)[kFewColumns]) {
  int64_t whole = rows.matrix.columns / Rows::kSpan, last = part.count - 1, index[N];
  decltype(rows.row(0)) row[N];
  const float *scales[N], *biases[N], *values = x.values + first_row * x.stride;
  for (int n = 0; n < N; ++n) {
    index[n] = std::min(column + n * apart, last);  // beyond the end the last one is computed again
    row[n] = rows.row(part.first + index[n]);
    scales[n] = part.scales + index[n] * x.groups;
    biases[n] = part.biases + index[n] * x.groups;
  }
  Vec total[M][N];
#pragma GCC unroll 8
  for (int i = 0; i < M * N; ++i) total[i / N][i % N] = Vec{};
  for (int64_t span = 0; span < whole; ++span) {
    typename Rows::Span spans[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) spans[n] = rows.span(row[n], span, scales[n]);
    add_span<Rows, M, N>(spans, values + span * kPrepared<Rows>, x.stride, total);
  }
  if (whole < x.spans) {
    typename Rows::End spans[N];
    for (int n = 0; n < N; ++n) spans[n] = rows.end(row[n], whole, scales[n]);
    add_span<Rows, M, N>(spans, values + whole * kPrepared<Rows>, x.stride, total);
  }
  add_biases<M, N>(x.sums + first_row * x.groups, biases, x.groups, total[0]);
  for (int i = 0; i < M * N; i += 4) {
    float results[4];
    sum4(total[0] + i, results);
    for (int j = 0; j < 4; ++j) lines[first_row + (i + j) / N][index[(i + j) % N]] = results[j];
  }
}

/// All of a few rows of x times a stretch of columns: as many sums at a time as there are registers for.
template <class Rows>
void few_rows_of(const Rows& rows, const Activations& x, const Stretch& part) {
  float lines[kFewRows][kFewColumns];
  auto some = [&](auto height, int64_t first_row) {
    constexpr int kHeight = decltype(height)::value, kColumns = kHeight == 1 ? 4 : 8 / kHeight;
    int64_t apart = (part.count + kColumns - 1) / kColumns;
    for (int64_t n = 0; n < apart; ++n) few_rows<Rows, kHeight, kColumns>(rows, x, first_row, part, n, apart, lines);
  };
  int64_t row = 0;
  for (; row + 8 <= x.rows; row += 8) some(std::integral_constant<int, 8>(), row);
  for (; row + 4 <= x.rows; row += 4) some(std::integral_constant<int, 4>(), row);
  for (; row + 2 <= x.rows; row += 2) some(std::integral_constant<int, 2>(), row);
  for (; row < x.rows; ++row) some(std::integral_constant<int, 1>(), row);
  for (int64_t m = 0; m < x.rows; ++m) put(part.product, m, part.first, part.count, lines[m]);
}

/// The same as add_span for M rows of x and kTileColumns rows of a panel, over `spans` spans.
template <class Rows, int M>
void scaled_tile(const float* x, int64_t x_stride, const float* panel, int64_t stride, int64_t spans, Vec* sums) {
  // BEGIN task 2.3.4
  using Arithmetic = typename Rows::Arithmetic;
  Vec total[M * kTileColumns];
#pragma GCC unroll 24
  for (int i = 0; i < M * kTileColumns; ++i) total[i] = sums[i];
  for (; spans > 0; --spans, x += kPrepared<Rows>, panel += kDecoded<Rows>) {
    typename Arithmetic::Part part[M][kTileColumns];
#pragma GCC unroll 8
    for (int j = 0; j < Rows::kVectors; ++j) {
      Vec activation[M];
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) activation[m] = load(x + m * x_stride + j * kWidth);
#pragma GCC unroll 4
      for (int n = 0; n < kTileColumns; ++n) {
        Vec weight = load(panel + n * stride + j * kWidth);
        pin(weight);  // loaded once, not by every product
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
          part[m][n] = j == 0 ? Arithmetic::times(weight, activation[m])
                              : Arithmetic::times_plus(weight, activation[m], part[m][n]);
        }
      }
    }
#pragma GCC unroll 4
    for (int n = 0; n < kTileColumns; ++n) {
      Vec scale = Rows::kGroup > 0 ? load(panel + n * stride + Rows::kVectors * kWidth) : set(1.0f);
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m)
        total[m * kTileColumns + n] = fma(Arithmetic::value(part[m][n]), scaled<Rows>(scale, x + m * x_stride),
                                          total[m * kTileColumns + n]);
    }
  }
#pragma GCC unroll 24
  for (int i = 0; i < M * kTileColumns; ++i) sums[i] = total[i];
  // END task 2.3.4
}

/// Decode spans first to first + count of a stretch's rows into panel [columns, stride].
template <class Rows>
void fill_panel(const Rows& rows, const Stretch& part, int64_t groups, int64_t first, int64_t count,
                float* panel, int64_t stride) {
  // BEGIN task 2.3.4
  int64_t whole = std::min(first + count, rows.matrix.columns / Rows::kSpan);
  for (int64_t n = 0; n < rounded_up(part.count, kTileColumns); ++n) {
    int64_t index = std::min(n, part.count - 1);
    auto row = rows.row(part.first + index);
    const float* scales = part.scales + index * groups;
    float* at = panel + n * stride;
    auto keep = [&](const auto& span) {
#pragma GCC unroll 8
      for (int j = 0; j < Rows::kVectors; ++j) store(at + j * kWidth, span.vector(j));
      if constexpr (Rows::kGroup > 0) store(at + Rows::kVectors * kWidth, span.scale());
      at += kDecoded<Rows>;
    };
    for (int64_t span = first; span < whole; ++span) keep(rows.span(row, span, scales));
    if (whole < first + count) keep(rows.end(row, whole, scales));
  }
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
      in_tiles<Rows::Arithmetic::kTileRows>(num_rows, [&](auto height, int64_t m) {
        for (int64_t n = strip; n < std::min(strip + kStripColumns, columns); n += kTileColumns)
          use(height, m, n, sums + n * num_rows + m * kTileColumns);  // a tile's sums stand together
      });
  };
  constexpr int64_t kSpans = kBlockElements / Rows::kSpan, kStride = kSpans * kDecoded<Rows>;
  for (int64_t first = 0; first < x.spans; first += kSpans) {
    int64_t count = std::min(kSpans, x.spans - first);
    fill_panel(rows, part, x.groups, first, count, panel, kStride);
    each_tile([&](auto height, int64_t m, int64_t n, Vec* at) {
      scaled_tile<Rows, height>(x.values + (first_row + m) * x.stride + first * kPrepared<Rows>, x.stride,
                                panel + n * kStride, kStride, count, at);
    });
  }
  float lines[kBlockRows][kBlockColumns];
  each_tile([&](auto height, int64_t m, int64_t n, Vec* at) {
    const float* biases[kTileColumns];
    for (int j = 0; j < kTileColumns; ++j) biases[j] = part.biases + std::min(n + j, part.count - 1) * x.groups;
    add_biases<height, kTileColumns>(x.sums + (first_row + m) * x.groups, biases, x.groups, at);
    for (int i = 0; i < height; ++i) sum4(at + i * kTileColumns, lines[m + i] + n);
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
  if (x.rows <= kFewRows) return few_rows_of(rows, x, part);
  float* panel = buffer<float>(team, id, kPanel, 2 * kBlockColumns * kBlockElements);
  Vec* sums = buffer<Vec>(team, id, kTotals, kBlockRows * kBlockColumns);
  for (int64_t m = 0; m < x.rows; m += kBlockRows)
    many_rows(rows, x, m, std::min(kBlockRows, x.rows - m), part, panel, sums);
}

template <class Rows>
void linear_of(Team& team, const Tensor& x, const Product* products, int count) {
  int64_t spans = (x.shape[1] + Rows::kSpan - 1) / Rows::kSpan, groups = 0;
  if constexpr (Rows::kGroup > 0) groups = rounded_up((spans * Rows::kSpan + Rows::kGroup - 1) / Rows::kGroup, kWidth);
  // Rows that stood a power of two apart would compete for the same places of the cache.
  Activations acts{nullptr, nullptr, x.shape[0], spans, spans * kPrepared<Rows> + 16, groups};
  float* values = buffer<float>(team, 0, kValues, acts.rows * acts.stride);
  float* sums = buffer<float>(team, 0, kSums, acts.rows * groups);
  acts.values = values, acts.sums = sums;
  team.each(acts.rows, [&](int id, int64_t m) {
    std::fill_n(sums + m * groups, groups, 0.0f);
    prepare_row<Rows>(x, m, values + m * acts.stride, sums + m * groups, buffer<float>(team, id, kScales, groups), spans);
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

template <int kBits, class Arithmetic>
void packed(Team& team, const Tensor& x, const Product* products, int count) {
  switch (products[0].matrix.group_size) {
    case 32: return linear_of<PackedRows<kBits, 32, Arithmetic>>(team, x, products, count);
    case 64: return linear_of<PackedRows<kBits, 64, Arithmetic>>(team, x, products, count);
    default: return linear_of<PackedRows<kBits, 128, Arithmetic>>(team, x, products, count);
  }
}

/// What float32 promises only floats keep; 16-bit activations lose nothing that their results could show. Who asks for
/// 8 bits knows what they lose.
template <int kBits>
void packed(Team& team, const Tensor& x, const Product* products, int count) {
  if constexpr (kBits == 4)
    if (products[0].matrix.activation_bits == 8) return packed<kBits, QuadArithmetic>(team, x, products, count);
  if (x.dtype == DType::f32) return packed<kBits, FloatArithmetic>(team, x, products, count);
  packed<kBits, PairArithmetic>(team, x, products, count);
}

void linear(Team& team, const Tensor& x, const Product* products, int count) {
  if (x.size() == 0) return;
  switch (products[0].matrix.bits) {
    case 4: return packed<4>(team, x, products, count);
    case 8: return packed<8>(team, x, products, count);
    default:
      for (int first = 0, end; first < count; first = end) {  // those of one dtype together
        DType dtype = products[first].matrix.dtype;
        for (end = first + 1; end < count && products[end].matrix.dtype == dtype;) ++end;
        visit(dtype, [&](auto* type) {
          linear_of<DenseRows<std::remove_pointer_t<decltype(type)>>>(team, x, products + first, end - first);
        });
      }
  }
}

}  // namespace tiny_llm::TINY_ISA
