// The output columns that one item of a product computes: their scales and biases, and how results are
// stored.
#pragma once

#include <algorithm>

#include "activations.h"

namespace tiny_llm::TINY_ISA {

constexpr int64_t kFewColumns = 128;  // columns of a tile when there are few rows

/// Neighbouring output columns of one product, with the scales and biases of their weights as floats.
struct ColumnTile {
  const Product& product;
  int64_t first, count;
  float *scales, *biases;  // [count, groups]
  const Matrix& next;      // what the thread computes next, if no other one is faster: columns of this matrix
  int64_t next_first;
};

/// Call use(group) with a group size of packed weights as a constant.
template <class Use>
inline void with_group_size(const Matrix& matrix, const Use& use) {
  switch (matrix.group_size) {
    case 32: return use(std::integral_constant<int, 32>());
    case 64: return use(std::integral_constant<int, 64>());
    default: return use(std::integral_constant<int, 128>());
  }
}

/// The columns of one product, starting at `first`.
struct Place {
  const Product* product;
  int64_t first;
};

/// Several products of the same x as items of up to `length` columns.
struct Items {
  const Product* products;
  int64_t length, count = 0;

  Items(const Product* products, int num_products, int64_t length) : products(products), length(length) {
    for (int i = 0; i < num_products; ++i) count += of(products[i]);
  }

  int64_t of(const Product& each) const { return (each.matrix.rows + length - 1) / length; }

  Place at(int64_t item) const {
    const Product* product = products;
    for (int64_t own; item >= (own = of(*product)); ++product) item -= own;
    return {product, item * length};
  }
};

constexpr int kFewRows = 8;  // up to this many rows of x, memory is the limit, or decoding

/// Add to `rows` lines of `count` floats, `stride` apart, as many numbers of rows that are `step` apart.
template <class T>
inline void add_rows(const T* from, int64_t step, int64_t rows, int64_t count, float* lines, int64_t stride) {
  for (int64_t m = 0; m < rows; ++m, from += step, lines += stride) {
    int64_t i = 0;
    for (; i + kWidth <= count; i += kWidth) store(lines + i, load(lines + i) + load(from + i));
    if (i < count) store(lines + i, load(lines + i) + load_part(from + i, count - i));
  }
}

/// Add the layer's bias and the residual to `count` results of each of `rows` rows, and store them in the
/// output's dtype. Lines begin `stride` floats apart, and have room for whole vectors.
inline void store_rows(const Product& product, int64_t row, int64_t rows, int64_t first, int64_t count,
                       float* lines, int64_t stride) {
  auto add = [&](const Tensor& t, int64_t at, int64_t step) {
    if (t.data == nullptr) return;
    visit(t.dtype, [&](auto* type) {
      add_rows(static_cast<decltype(type)>(t.data) + at, step, rows, count, lines, stride);
    });
  };
  const Tensor &residual = product.residual, &out = product.out;
  add(product.bias, first, 0);
  add(residual, row * residual.stride[0] + first, residual.stride[0]);
  visit(out.dtype, [&](auto* type) {
    auto* to = static_cast<decltype(type)>(out.data) + row * out.stride[0] + first;
    for (int64_t m = 0; m < rows; ++m) narrow(lines + m * stride, count, to + m * out.stride[0]);
  });
}

/// The factor of a span's sum: the scale of the weights, times that of the activations if they are integers.
template <class Rows>
inline Vec scaled(Vec scale, const float* x) {
  return Rows::Arithmetic::kIsFixed ? scale * load(x + Rows::kVectors * kWidth) : scale;
}

/// Add the biases of N rows of the matrix, each times the sum of its group of x, to the sums of M rows of x.
/// A bias is read once for all rows.
template <int M, int N>
[[gnu::always_inline]] inline void add_biases(const float* sums, const float* const* biases, int64_t groups,
                                              Vec* totals) {
  Vec total[M * N];
#pragma GCC unroll 32
  for (int i = 0; i < M * N; ++i) total[i] = totals[i];
  for (int64_t g = 0; g < groups; g += kWidth)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      Vec bias = load(biases[n] + g);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) total[m * N + n] = fma(bias, load(sums + m * groups + g), total[m * N + n]);
    }
#pragma GCC unroll 32
  for (int i = 0; i < M * N; ++i) totals[i] = total[i];
}

/// The scales or biases of `count` columns as floats, [count, padded].
inline void widen_groups(const Matrix& w, const void* data, int64_t first, int64_t count, int64_t padded,
                         float* out) {
  int64_t groups = w.columns / w.group_size;
  if (groups == padded) return widen(data, w.dtype, first * groups, count * groups, count * groups, out);
  for (int64_t n = 0; n < count; ++n)
    widen(data, w.dtype, (first + n) * groups, groups, padded, out + n * padded);
}

}  // namespace tiny_llm::TINY_ISA
