// The output columns that one item of a product computes: where they are, the rows of the matrix that they
// are made of, and how results are stored.
#pragma once

#include <algorithm>

#include "activations.h"

namespace tiny_llm::TINY_ISA {

constexpr int kBlockVectors = kBlockColumns / kWidth;
constexpr int64_t kItemColumns = kBlockPadding;  // of one item

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

/// The rows of a matrix, or of its scales or biases, from one of them to the last: `count` rows of `bytes`
/// bytes.
struct RowBytes {
  const char* data;
  int64_t bytes, count;
  bool ends_in_zeros;  // what is read behind the end of a row; otherwise nothing uses what is found there

  /// Whether words `first` to `first + words - 1` of kWidth rows from `row` on can be read where they are.
  bool has(int64_t row, int64_t first, int64_t words) const {
    int64_t end = (first + words) * 4;
    return !(ends_in_zeros && end > bytes) && (row + kWidth - 1) * bytes + end <= count * bytes;
  }

  /// Copies `size` bytes of each of kWidth rows, from word `first` on, with zeros for what is not there.
  void copy(int64_t row, int64_t first, int64_t size, char* out) const {
    std::memset(out, 0, size * kWidth);
    int64_t left = std::clamp<int64_t>(bytes - first * 4, 0, size);
    for (int64_t i = 0; i < std::min<int64_t>(kWidth, count - row); ++i)
      std::memcpy(out + i * size, data + (row + i) * bytes + first * 4, left);
  }
};

/// Number i of those that a word has: floats of `dtype`.
inline Vec number_of(WordVec word, DType dtype, int64_t i) {
  if (dtype == DType::f32) return as_floats(word);
  if (dtype == DType::f16) return floats_of_f16(i == 0 ? word & 0xffff : word >> 16);
  return as_floats(i == 0 ? word << 16 : word & 0xffff0000);
}

}  // namespace tiny_llm::TINY_ISA
