// What an operator refuses when it is built. An error inside a task would leave MLX's count of tasks wrong
// (see `settle`), and would surface far from the call that caused it. So every argument is checked here.
#pragma once

#include <optional>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "operator.h"

namespace tiny_llm {

using Array = mx::array;

/// Raise a ValueError that says `parts`.
template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  throw std::invalid_argument(out.str());
}

/// A line is put together only when it is needed: operators are built thousands of times a second.
template <class... Parts>
void require(bool holds, const Parts&... otherwise) {
  if (!holds) refuse(otherwise...);
}

inline void require_float(const Array& a, const char* what) {
  bool is_float = a.dtype() == mx::float32 || a.dtype() == mx::float16 || a.dtype() == mx::bfloat16;
  require(is_float, what, " must be float32, float16 or bfloat16, not ", a.dtype(), ": use astype");
}

/// Floats [..., K].
inline void require_rows(const Array& x, const char* what) {
  require(x.ndim() > 0 && x.shape(-1) > 0, what, " must have rows of one number or more, not the shape ",
          x.shape());
  require_float(x, what);
}

/// Floats [size]: a norm's weight, a bias.
inline void require_vector(const Array& a, int size, const char* what) {
  require(a.shape() == mx::Shape{size}, what, " must be [", size, "], not ", a.shape());
  require_float(a, what);
}

inline void require_alike(const Array& a, const Array& b, const char* what) {
  require(a.shape() == b.shape() && a.dtype() == b.dtype(), what, " must be alike in shape and dtype");
}

/// The axes of one matrix of a stack that has one or more, or of the matrix that it is.
inline mx::Shape axes_of_one(const Array& a, bool is_stack) {
  require(!is_stack || (a.ndim() > 1 && a.shape(0) > 0), "a stack has one matrix or more, not ", a.shape());
  return {a.shape().begin() + is_stack, a.shape().end()};
}

/// A dense matrix [N, K].
inline void require_matrix(const Array& a, bool is_stack = false) {
  mx::Shape shape = axes_of_one(a, is_stack);
  require(shape.size() == 2 && shape[1] > 0, "a matrix must be [N, K] with K of 1 or more, not ", shape);
  require_float(a, "a matrix");
}

inline int in_padded_rows(int rows) { return (rows + kBlockPadding - 1) / kBlockPadding * kBlockPadding; }

/// A matrix in MLX's affine packing: words [N, K * bits / 32], scales and biases [N, K / group_size]; or N =
/// `in_blocks` rows in blocks.
inline void require_packing(const Array& words, const Array& scales, const Array& biases, int group_size,
                            int bits, int in_blocks, bool is_stack = false) {
  require(bits == 4 || bits == 8, "bits must be 4 or 8, not ", bits, ": dequantize the weights");
  require(group_size == 32 || group_size == 64 || group_size == 128, "group_size must be 32, 64 or 128, not ",
          group_size, ": dequantize the weights");
  mx::Shape shape = axes_of_one(words, is_stack);
  bool is_right = in_blocks == 0 && shape.size() == 2;
  if (in_blocks > 0)
    is_right = shape.size() == 3 && shape[0] * kBlockColumns == in_padded_rows(in_blocks) &&
               shape[2] == kBlockColumns;
  require(words.dtype() == mx::uint32 && is_right && shape[1] > 0,
          "packed weights must be uint32 [N, K * bits / 32]: pack them with mx.quantize");
  require_float(scales, "scales");
  require_alike(scales, biases, "scales and biases");
  int columns = shape[1] * (32 / bits), groups = columns / group_size;
  shape[1] = groups;
  bool is_like = is_stack ? scales.ndim() > 0 && scales.shape(0) == words.shape(0) : true;
  require(is_like && groups * group_size == columns && axes_of_one(scales, is_stack) == shape,
          "scales must be [", shape[0], ", ", columns, " / ", group_size, "], not ", scales.shape());
}

/// A dense matrix of `in_blocks` rows in blocks: [P / 16, n, 16] words of one number or two.
inline void require_dense_blocks(const Array& words, int in_blocks, bool is_stack = false) {
  require_float(words, "a matrix in blocks");
  mx::Shape shape = axes_of_one(words, is_stack);
  bool is_right = in_blocks > 0 && shape.size() == 3 && shape[1] * 4 / words.itemsize() % 64 == 0 &&
                  shape[0] * kBlockColumns == in_padded_rows(in_blocks) &&
                  shape[2] == kBlockColumns * 4 / static_cast<int>(words.itemsize());
  require(is_right, "dense blocks must be made by in_blocks, not of the shape ", words.shape());
}

/// Queries, keys and values of dtypes that attention reads.
inline void require_dtypes(const Array& q, const Array& k, const Array& v) {
  require_float(q, "the query");
  require_alike(k, v, "key and value");
}

/// Pools of int8 have scales, one for every row; others are floats and have none.
inline void require_scales(const Array& pool, const std::optional<std::pair<Array, Array>>& kv_scales) {
  require(kv_scales.has_value() == (pool.dtype() == mx::int8),
          "pools of int8 come with scales, and only they");
  if (!kv_scales) return require_float(pool, "a pool");
  mx::Shape rows(pool.shape().begin(), pool.shape().end() - 1);
  for (auto* scales : {&kv_scales->first, &kv_scales->second})
    require(scales->shape() == rows && scales->dtype() == mx::float32,
            "scales must be float32 [blocks, G, block size], one for every row of their pool");
}

}  // namespace tiny_llm
