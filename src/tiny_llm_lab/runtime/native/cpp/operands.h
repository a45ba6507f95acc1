// What an operator is given: arrays as tensors, weights and positions as inputs of its node.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>

#include "checks.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tiny_llm {

/// Tokens before those of a call: one number, or one for each row of the batch.
using Offsets = std::variant<int, std::vector<int>>;

inline int64_t bytes_per(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16 ? 2 : 4; }

/// Leading dimensions as one: [M, K]. Rows must be evenly spaced, see `evenly_spaced`.
inline Tensor as_rows(const Tensor& t) {
  Tensor rows{t.data, t.dtype, 2, {1, t.shape[t.ndim - 1]}, {t.shape[t.ndim - 1], 1}};
  for (int i = 0; i < t.ndim - 1; ++i) rows.shape[0] *= t.shape[i];
  for (int i = 0; i < t.ndim - 1; ++i)
    if (t.shape[i] != 1) rows.stride[0] = t.stride[i];  // the innermost one that counts
  return rows;
}

/// The same memory as a contiguous array of another shape.
inline Tensor shaped(const Tensor& t, std::initializer_list<int64_t> shape) {
  Tensor out{t.data, t.dtype, static_cast<int>(shape.size())};
  std::copy(shape.begin(), shape.end(), out.shape);
  for (int64_t i = out.ndim - 1, step = 1; i >= 0; step *= out.shape[i--]) out.stride[i] = step;
  return out;
}

/// Tensors in one scratch buffer, one behind the other.
class Pieces {
 public:
  static constexpr int64_t kStep = 64;  // the most that is left free between two

  Pieces(ThreadPool& threads, int slot, int64_t bytes)
      : next_(static_cast<char*>(threads.scratch(0, slot, bytes))) {}

  Tensor take(DType dtype, std::initializer_list<int64_t> shape, int64_t itemsize) {
    Tensor t = shaped({next_, dtype}, shape);
    next_ += (t.size() * itemsize + kStep - 1) / kStep * kStep;
    return t;
  }

  /// As many rows as x has, of `width` numbers of its dtype.
  Tensor like(const Tensor& x, int64_t width) {
    return take(x.dtype, {x.shape[0], width}, bytes_per(x.dtype));
  }

 private:
  char* next_;
};

/// `count` rows of a matrix from `first` on.
inline Tensor rows_of(Tensor t, int64_t first, int64_t count) {
  t.data = static_cast<char*>(t.data) + first * t.stride[0] * bytes_per(t.dtype);
  t.shape[0] = count;
  return t;
}

/// At most one leading dimension may be longer than 1, unless the array is contiguous, which only a copy
/// ensures.
inline Array evenly_spaced(const Array& a) {
  int longer = 0;
  for (int i = 0; i < static_cast<int>(a.ndim()) - 1; ++i) longer += a.shape(i) != 1;
  return longer <= 1 ? a : mx::contiguous(a, false, mx::Device::cpu);
}

/// A contiguous array, as matrices and tables must be. Those of a model are contiguous and evaluated already,
/// and are returned unchanged.
inline Array one_piece(const Array& a) {
  bool is_one = a.status() != Array::Status::unscheduled && a.flags().row_contiguous;
  return is_one ? a : mx::contiguous(a, false, mx::Device::cpu);
}

/// The leading dimensions of [..., K] as one.
inline int64_t num_rows(const Array& x) { return static_cast<int64_t>(x.size()) / x.shape(-1); }

inline double bytes_of(const Array& a) { return static_cast<double>(a.nbytes()); }

/// An argument whose type nanobind has not checked.
inline Array array_of(nb::handle object, const char* what) {
  try {  // asking first would cost as much as the cast
    return nb::cast<Array>(object);
  } catch (const nb::cast_error&) {
    refuse(what, " must be mx.array");
  }
}

/// A weight as Python holds it: an array [N, K], or `QuantizedWeights`. Its arrays become inputs of an
/// operator; what the operator keeps is their layout. With `is_stack` there are `count` of them, and all
/// arrays have one more axis in front.
struct Weight {
  int count = 1, rows = 0, columns, group_size = 0, bits = 0, activation_bits = 16;
  bool in_blocks = false;
  size_t first;  // its arrays' place among the inputs
  double bytes = 0;

  Weight(nb::handle object, std::vector<Array>& inputs, bool is_stack = false) : first(inputs.size()) {
    if (nb::isinstance<Array>(object)) {
      inputs.push_back(one_piece(nb::cast<Array>(object)));
      require_matrix(inputs[first], is_stack);
      rows = inputs[first].shape(-2), columns = inputs[first].shape(-1);
    } else {
      bits = nb::cast<int>(object.attr("bits"));
      for (const char* part : {"weight", "scales", "biases"})
        if (bits > 0 || inputs.size() == first)
          inputs.push_back(one_piece(array_of(object.attr(part), part)));
      group_size = nb::cast<int>(object.attr("group_size"));
      activation_bits = nb::cast<int>(object.attr("activation_bits"));
      rows = nb::cast<int>(object.attr("in_blocks"));
      in_blocks = rows != 0;
      const Array& words = inputs[first];
      if (bits == 0)
        require_dense_blocks(words, rows, is_stack);
      else
        require_packing(words, inputs[first + 1], inputs[first + 2], group_size, bits, rows, is_stack);
      require(activation_bits == 8 || activation_bits == 16, "activation_bits must be 8 or 16, not ",
              activation_bits);
      if (!in_blocks) rows = words.shape(is_stack);
      columns = words.shape(1 + is_stack) * 32 / (bits > 0 ? bits : 8 * static_cast<int>(words.itemsize()));
    }
    if (is_stack) count = inputs[first].shape(0);
    for (size_t i = first; i < inputs.size(); ++i) bytes += bytes_of(inputs[i]);
  }

  void require_fit(const Array& x) const {
    require(columns == x.shape(-1), "x has ", x.shape(-1), " columns but the matrix takes ", columns);
  }

  void require_like(const Weight& other) const {
    bool is_alike =
        bits == other.bits && group_size == other.group_size && activation_bits == other.activation_bits;
    require(is_alike, "matrices multiplied together must be packed alike");
  }

  Matrix matrix(const std::vector<Tensor>& in) const {
    Matrix m{in[first].data, nullptr,    nullptr, in[first].dtype, rows,
             columns,        group_size, bits,    activation_bits, in_blocks};
    if (bits) m.scales = in[first + 1].data, m.biases = in[first + 2].data, m.dtype = in[first + 1].dtype;
    return m;
  }
};

// Scratch buffers that no kernel uses: of an operator, and of a stack of layers around its parts.
constexpr int kBindingSlot = 15, kStackSlot = 14;

inline std::vector<int32_t> per_row(const Offsets& value, int rows) {
  if (auto* one = std::get_if<int>(&value)) return std::vector<int32_t>(rows, *one);
  auto& many = std::get<std::vector<int>>(value);
  require(static_cast<int>(many.size()) == rows, many.size(), " numbers for ", rows, " rows");
  return {many.begin(), many.end()};
}

/// Computes arrays without Python's lock, which the stream may need to free what an operator held.
inline void evaluate(std::vector<Array> arrays) {
  nb::gil_scoped_release unlocked;
  mx::eval(std::move(arrays));
}

/// The numbers of an int32 array, each below `count`.
inline std::vector<int32_t> numbers(const Array& a, const char* what, int64_t count) {
  require(a.dtype() == mx::int32, what, " must be int32");
  Array whole = one_piece(a);
  evaluate({whole});
  std::vector<int32_t> list(whole.data<int32_t>(), whole.data<int32_t>() + whole.size());
  for (int32_t n : list) require(n >= 0 && n < count, what, " must be 0 to ", count - 1, ", not ", n);
  return list;
}

/// Matrices that are multiplied with the same x, each with a bias or none.
struct Matrices {
  std::vector<std::pair<Weight, size_t>> all;  // with the place of its bias among the inputs, 0 for none

  Matrices(const Array& x, nb::list weights, nb::list biases, std::vector<Array>& inputs) {
    require_rows(x, "x");
    require(biases.size() == 0 || biases.size() == weights.size(), biases.size(), " biases for ",
            weights.size(), " matrices: give None for each that has none");
    for (size_t i = 0; i < weights.size(); ++i) {
      Weight w(weights[i], inputs);
      w.require_fit(x);
      if (i > 0) w.require_like(all[0].first);
      bool has_bias = biases.size() > 0 && !biases[i].is_none();
      all.emplace_back(w, has_bias ? inputs.size() : 0);
      if (has_bias) {
        inputs.push_back(array_of(biases[i], "a bias"));
        require_vector(inputs.back(), w.rows, "a bias");
      }
    }
  }

  /// Of the products of `rows` rows of numbers of `itemsize` bytes.
  Cost cost(double rows, double itemsize) const {
    Cost sum{rows * (all.empty() ? 0 : all[0].first.columns) * itemsize, 0};
    for (auto& [w, bias] : all) {
      sum.bytes += w.bytes + rows * w.rows * itemsize;
      sum.flops += 2 * rows * w.rows * w.columns;
    }
    return sum;
  }

  void require_heads_of(int dim) const {
    for (auto& [w, bias] : all)
      require(dim > 0 && w.rows % dim == 0, "a matrix of ", w.rows, " rows has no whole heads of ", dim);
  }

  /// The products of x [M, K] into contiguous outputs.
  std::vector<Product> products(const Tensor& x, const std::vector<Tensor>& in,
                                const std::vector<Tensor>& out) const {
    std::vector<Product> list;
    for (size_t i = 0; i < all.size(); ++i) {
      auto& [w, bias] = all[i];
      list.push_back({w.matrix(in), bias ? in[bias] : Tensor{}, shaped(out[i], {x.shape[0], w.rows}), {}});
    }
    return list;
  }
};

/// The tables of rotations [P, D / 2] as inputs, and a position for each row of x [B, L, ...].
inline std::vector<int32_t> positions(const Array& x, const Offsets& offsets, const Array& cos,
                                      const Array& sin, std::vector<Array>& inputs) {
  require(cos.ndim() == 2 && cos.dtype() == mx::float32 && sin.dtype() == mx::float32 &&
              sin.shape() == cos.shape(),
          "the tables must be float32, and alike");
  auto rows = per_row(offsets, x.shape(0));
  for (int offset : rows)
    require(offset >= 0 && offset <= cos.shape(0) - x.shape(1), "positions must be 0 to ", cos.shape(0) - 1);
  inputs.insert(inputs.end(), {one_piece(cos), one_piece(sin)});
  return rows;
}

}  // namespace tiny_llm
