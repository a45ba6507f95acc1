// The operators between the matrix products: norms, rotations, the gate, the embedding, argmax.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "quantized_rows.h"

namespace tiny_llm::TINY_ISA {

/// Returns 1 / sqrt(mean square + eps) of the first `count` of `padded` numbers. The rest are zeros.
inline float inverse_rms(const float* x, int64_t count, int64_t padded, float eps) {
  Vec total{};
  for (int64_t i = 0; i < padded; i += kWidth) total = fma(load(x + i), load(x + i), total);
  return 1.0f / std::sqrt(sum(total) / static_cast<float>(count) + eps);
}

inline void multiply(float* x, const float* weight, float factor, int64_t padded) {
  for (int64_t i = 0; i < padded; i += kWidth) store(x + i, load(x + i) * set(factor) * load(weight + i));
}

void rms_norm(ThreadPool& threads, const Tensor& x, const Tensor& delta, const Tensor& weight, float eps,
              const Tensor& sum_out, const Tensor& out) {
  // BEGIN task 2.5.4
  throw std::runtime_error("task 2.5.4");
  // END task 2.5.4
}

/// Rotates the pairs of one head: neighbours if traditional, otherwise i and i + D / 2.
inline void rotate(const float* x, const float* cos, const float* sin, int64_t dim, bool traditional,
                   float* out) {
  // BEGIN task 2.5.5
  throw std::runtime_error("task 2.5.5");
  // END task 2.5.5
}

void rope(ThreadPool& threads, const Tensor& x, const Tensor& weight, float eps, const Tensor& cos,
          const Tensor& sin, const int32_t* offsets, bool traditional, const Tensor& out) {
  int64_t length = x.shape[1], heads = x.shape[2], dim = x.shape[3], padded = rounded_up(dim, kWidth);
  int64_t half = cos.shape[1];
  float* scale = buffer<float>(threads, 0, kSums, padded);
  if (weight.data != nullptr) widen(weight.data, weight.dtype, 0, dim, padded, scale);
  each_row(threads, x.shape[0] * length, heads * dim, [&](int id, int64_t row) {
    float* line = buffer<float>(threads, id, kValues, 2 * padded);
    int64_t batch = row / length, token = row % length, at = (offsets[batch] + token) * half;
    for (int64_t head = 0; head < heads; ++head) {
      widen(x.data, x.dtype, batch * x.stride[0] + token * x.stride[1] + head * x.stride[2], dim, padded,
            line);
      if (weight.data != nullptr) multiply(line, scale, inverse_rms(line, dim, padded, eps), padded);
      rotate(line, static_cast<const float*>(cos.data) + at, static_cast<const float*>(sin.data) + at,
             2 * half, traditional, line + padded);
      std::copy(line + 2 * half, line + dim, line + padded + 2 * half);
      narrow(line + padded, dim, out, batch * out.stride[0] + token * out.stride[1] + head * out.stride[2]);
    }
  });
}

void swiglu(ThreadPool& threads, const Tensor& gate, const Tensor& up, const Tensor& out) {
  // BEGIN task 2.5.4
  throw std::runtime_error("task 2.5.4");
  // END task 2.5.4
}

void sigmoid_gate(ThreadPool& threads, const Tensor& x, const Tensor& gate, const Tensor& out) {
  int64_t count = x.shape[1], padded = rounded_up(count, kWidth);
  each_row(threads, x.shape[0], 4 * count, [&](int id, int64_t row) {
    float *line = buffer<float>(threads, id, kValues, 2 * padded), *gates = line + padded;
    widen(x.data, x.dtype, row * x.stride[0], count, padded, line);
    widen(gate.data, gate.dtype, row * gate.stride[0], gate.shape[1], padded, gates);
    if (gate.shape[1] < count) std::fill(gates + 1, gates + padded, gates[0]);
    for (int64_t i = 0; i < padded; i += kWidth)
      store(line + i, load(line + i) / (set(1.0f) + exp(-load(gates + i))));
    narrow(line, count, out, row * out.stride[0]);
  });
}

/// One row of n elements: where it is, or, if the matrix is in blocks, copied to `room`.
template <class T>
const T* row_of(const void* data, bool in_blocks, int64_t row, int64_t n, void* room) {
  const T* at = static_cast<const T*>(data);
  if (!in_blocks) return at + row * n;
  auto* out = static_cast<T*>(room);
  for (int64_t k = 0; k < n; ++k)
    out[k] = at[(row / kBlockColumns * n + k) * kBlockColumns + row % kBlockColumns];
  return out;
}

/// Decodes one row of a matrix to floats out [padded]. `room` is as large.
inline void decode_row(const Matrix& m, int64_t row, float* out, float* groups, float* room) {
  if (m.bits == 0) {
    int64_t words = m.columns * (m.dtype == DType::f32 ? 4 : 2) / 4;
    const void* data = m.in_blocks ? row_of<uint32_t>(m.data, true, row, words, room) : m.data;
    int64_t first = m.in_blocks ? 0 : row * m.columns;
    return widen(data, m.dtype, first, m.columns, rounded_up(m.columns, kWidth), out);
  }
  int64_t count = m.columns / m.group_size, padded = rounded_up(count, kWidth);
  visit(m.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    widen(row_of<T>(m.scales, m.in_blocks, row, count, room), count, padded, groups);
    widen(row_of<T>(m.biases, m.in_blocks, row, count, room), count, padded, groups + padded);
  });
  const auto* words = row_of<uint32_t>(m.data, m.in_blocks, row, m.columns * m.bits / 32, room);
  for (int64_t k = 0; k < m.columns; ++k) {
    uint32_t q = words[k * m.bits / 32] >> (k * m.bits % 32) & ((1u << m.bits) - 1);
    out[k] = static_cast<float>(q) * groups[k / m.group_size] + groups[padded + k / m.group_size];
  }
}

void embedding(ThreadPool& threads, const int32_t* tokens, int64_t count, const Matrix& matrix,
               const Tensor& out) {
  int64_t padded = rounded_up(matrix.columns, kWidth);
  each_row(threads, count, matrix.columns, [&](int id, int64_t row) {
    float* line = buffer<float>(threads, id, kValues, 3 * padded + 4 * kWidth);
    decode_row(matrix, tokens[row], line, line + 2 * padded, line + padded);
    narrow(line, matrix.columns, out, row * out.stride[0]);
  });
}

/// Returns numbers first to first + kWidth - 1 of a row, with minus infinity after its end.
inline Vec load_or_lowest(const Tensor& x, int64_t row, int64_t first) {
  float line[kWidth];
  int64_t count = std::min<int64_t>(kWidth, x.shape[1] - first);
  widen(x.data, x.dtype, row * x.stride[0] + first, count, kWidth, line);
  for (int64_t i = count; i < kWidth; ++i) line[i] = -std::numeric_limits<float>::infinity();
  return load(line);
}

void argmax(ThreadPool& threads, const Tensor& x, uint32_t* out) {
  constexpr int64_t kPiece = 16384;
  int64_t pieces = (x.shape[1] + kPiece - 1) / kPiece;
  auto* best = buffer<std::pair<float, uint32_t>>(threads, 0, kTotals, x.shape[0] * pieces);
  threads.each(x.shape[0] * pieces, [&](int, int64_t item) {
    int64_t row = item / pieces, first = item % pieces * kPiece, end = std::min(first + kPiece, x.shape[1]);
    Vec peak = set(-std::numeric_limits<float>::infinity());
    IntVec where = {};
    for (int64_t i = first; i < end; i += kWidth) {
      Vec value = load_or_lowest(x, row, i);
      where = value > peak ? iota() + static_cast<int32_t>(i) : where;
      peak = max(value, peak);
    }
    std::pair<float, uint32_t> found(float{peak[0]},
                                     uint32_t(where[0]));  // Clang allows no reference to a lane
    for (int lane = 1; lane < kWidth; ++lane) {
      float value = peak[lane];
      uint32_t place = where[lane];
      if (value > found.first || (value == found.first && place < found.second)) found = {value, place};
    }
    best[item] = found;
  });
  for (int64_t row = 0; row < x.shape[0]; ++row) {
    auto* of_row = best + row * pieces;
    out[row] =
        std::max_element(of_row, of_row + pieces, [](auto& a, auto& b) { return a.first < b.first; })->second;
  }
}

void quantize_rows(ThreadPool& threads, const Tensor& x, int8_t* numbers, float* scales) {
  int64_t count = x.shape[1], padded = rounded_up(count, kWidth);
  each_row(threads, x.shape[0], count, [&](int id, int64_t row) {
    float* line = buffer<float>(threads, id, kValues, padded);
    widen(x.data, x.dtype, row * x.stride[0], count, padded, line);
    scales[row] = quantize_row(line, count, padded, numbers + row * count);
  });
}

}  // namespace tiny_llm::TINY_ISA
