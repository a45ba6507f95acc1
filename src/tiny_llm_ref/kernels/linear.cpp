// x times the transpose of a matrix, dense or packed, for one row and for thousands.
//
// Few rows: every weight is decoded in registers and used at once; the memory is the limit. Many rows: a panel
// of weights is decoded into the cache once and multiplied with all rows in tiles; arithmetic is the limit.
// Both add the same numbers in the same order, so neither the number of rows nor their place shows in a result.
#include <algorithm>

#include "tiles.h"
#include "weights.h"

namespace tiny_llm::TINY_ISA {

constexpr int kColumnsAtOnce = 8;               // sums whose additions overlap
constexpr int kFewRows = 2;                     // up to here decoding twice is cheaper than a panel
constexpr int64_t kBlockRows = 48, kBlockColumns = 32, kBlockElements = 512;  // what the caches hold

/// The activations of one call, as floats in the order of the matrix's vectors.
struct Activations {
  const float* values;  // [M, width], each row followed by zeros up to a whole span
  const float* sums;    // [M, groups], the sum of each group, which its bias multiplies
  int64_t rows, width, groups;
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
  for (int64_t first = 0; first < shape.width; first += Rows::kSpan) {
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
    float addend[kBlockColumns];
    widen(bias.data, bias.dtype, first, count, rounded_up(count, kWidth), addend);
    for (int64_t i = 0; i < count; ++i) line[i] += addend[i];
  }
  narrow(line, count, product.out, row * product.out.stride[0] + first);
}

/// `M` rows of x times up to kColumnsAtOnce rows of the matrix, decoded in registers.
template <class Rows, int M>
void few_rows(const Rows& rows, const Activations& x, int64_t first_row, const Stretch& part, int64_t column) {
  constexpr int N = kColumnsAtOnce / M;
  int64_t whole = rows.matrix.columns / Rows::kSpan, index[N];
  decltype(rows.row(0)) row[N];
  const float* scales[N];
  for (int n = 0; n < N; ++n) {
    index[n] = std::min(column + n, part.count - 1);  // beyond the end the last one is computed again
    row[n] = rows.row(part.first + index[n]);
    scales[n] = part.scales + index[n] * x.groups;
  }
  Vec total[M][N] = {};
  const float* at = x.values + first_row * x.width;
  auto add = [&](int n, int64_t span, int j, Vec weight) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m)
      total[m][n] = fma(weight, load(at + m * x.width + span * Rows::kSpan + j * kWidth), total[m][n]);
  };
  for (int64_t span = 0; span < whole; ++span)
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n)
      rows.decode([&](int j, Vec weight) { add(n, span, j, weight); }, row[n], span, scales[n]);
  if (whole * Rows::kSpan < rows.matrix.columns)
    for (int n = 0; n < N; ++n)
      rows.decode_end([&](int j, Vec weight) { add(n, whole, j, weight); }, row[n], whole, scales[n]);
  for (int m = 0; m < M; ++m) {
    float line[kColumnsAtOnce];
    for (int n = 0; n < N; ++n) {
      const float* biases = part.biases + index[n] * x.groups;
      total[m][n] = with_biases(total[m][n], biases, x.sums + (first_row + m) * x.groups, x.groups);
    }
    for (int n = 0; n < N; n += 4) sum4(total[m] + n, line + n);
    put(part.product, first_row + m, part.first + column, std::min<int64_t>(N, part.count - column), line);
  }
}

/// Decode elements first to first + count of a stretch's rows into panel [columns, stride].
template <class Rows>
void fill_panel(const Rows& rows, const Stretch& part, int64_t groups, int64_t first, int64_t count,
                float* panel, int64_t stride) {
  for (int64_t n = 0; n < rounded_up(part.count, kTileColumns); ++n) {
    int64_t index = std::min(n, part.count - 1);
    for (int64_t k = 0; k < count; k += Rows::kSpan) {
      auto keep = [&](int j, Vec weight) { store(panel + n * stride + k + j * kWidth, weight); };
      int64_t span = (first + k) / Rows::kSpan;
      const float* scales = part.scales + index * groups;
      if ((span + 1) * Rows::kSpan <= rows.matrix.columns)
        rows.decode(keep, rows.row(part.first + index), span, scales);
      else
        rows.decode_end(keep, rows.row(part.first + index), span, scales);
    }
  }
}

/// Rows first_row to first_row + num_rows of x times a stretch of columns, by panels and tiles.
template <class Rows>
void many_rows(const Rows& rows, const Activations& x, int64_t first_row, int64_t num_rows, const Stretch& part,
               float* panel, Vec* sums) {
  int64_t columns = rounded_up(part.count, kTileColumns);
  std::fill_n(sums, num_rows * columns, Vec{});
  auto each_tile = [&](auto use) {
    for (int64_t n = 0; n < columns; n += kTileColumns)
      in_tiles(num_rows, [&](auto height, int64_t m) {
        use(height, m, n, sums + n * num_rows + m * kTileColumns);  // a tile's sums stand together
      });
  };
  for (int64_t first = 0; first < x.width; first += kBlockElements) {
    int64_t count = std::min(kBlockElements, x.width - first);
    fill_panel(rows, part, x.groups, first, count, panel, kBlockElements);
    each_tile([&](auto height, int64_t m, int64_t n, Vec* at) {
      tile<height>(x.values + (first_row + m) * x.width + first, x.width, panel + n * kBlockElements,
                   kBlockElements, count, at);
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

/// All of x times one stretch of columns.
template <class Rows>
void compute(Team& team, int id, const Activations& x, const Product& product, int64_t first, int64_t count) {
  const Matrix& w = product.matrix;
  Stretch part{product, first, count, nullptr, nullptr};
  if constexpr (Rows::kGroup > 0) {
    part.scales = buffer<float>(team, id, kScales, count * x.groups);
    part.biases = buffer<float>(team, id, kBiases, count * x.groups);
    for (int64_t n = 0; n < count; ++n) {
      int64_t groups = w.columns / w.group_size, at = (first + n) * groups;
      widen(w.scales, w.dtype, at, groups, x.groups, part.scales + n * x.groups);
      widen(w.biases, w.dtype, at, groups, x.groups, part.biases + n * x.groups);
    }
  }
  Rows rows{w};
  if (x.rows <= kFewRows) {
    for (int64_t n = 0; n < count; n += kColumnsAtOnce / x.rows)
      x.rows == 1 ? few_rows<Rows, 1>(rows, x, 0, part, n) : few_rows<Rows, 2>(rows, x, 0, part, n);
    return;
  }
  float* panel = buffer<float>(team, id, kPanel, kBlockColumns * kBlockElements);
  Vec* sums = buffer<Vec>(team, id, kTotals, kBlockRows * kBlockColumns);
  for (int64_t m = 0; m < x.rows; m += kBlockRows)
    many_rows(rows, x, m, std::min(kBlockRows, x.rows - m), part, panel, sums);
}

template <class Rows>
void linear_of(Team& team, const Tensor& x, const Product* products, int count) {
  Activations acts{nullptr, nullptr, x.shape[0], rounded_up(x.shape[1], Rows::kSpan), 0};
  if constexpr (Rows::kGroup > 0) acts.groups = rounded_up(acts.width / Rows::kGroup, kWidth);
  float* values = buffer<float>(team, 0, kValues, acts.rows * acts.width);
  float* sums = buffer<float>(team, 0, kSums, acts.rows * acts.groups);
  acts.values = values, acts.sums = sums;
  team.each(acts.rows, [&](int, int64_t m) {
    std::fill_n(sums + m * acts.groups, acts.groups, 0.0f);
    prepare_row<Rows>(x, m, values + m * acts.width, sums + m * acts.groups, acts);
  });
  // Stretches short enough to share evenly, long enough that taking one costs nothing.
  int64_t length = acts.rows <= kFewRows ? 128 : kBlockColumns, items = 0;
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
