// A packed product on four rungs. Each rung is faster than the previous one, for a reason that you can work
// out on paper first. linear.cpp is the fifth. All compute out [M, N] = x [M, K] times the transpose of the
// matrix.
//
// The rungs get float32 rows and float scales, so only the arithmetic differs.
#include "tiles.h"

namespace tiny_llm::TINY_ISA {

/// One row of x as floats, and the packed row n of the matrix with its scales and biases as floats.
struct RowPair {
  const float* x;
  const uint32_t* words;
  const float *scales, *biases;
  int64_t columns, group_size;
  int bits;
};

/// Rung 1. The definition, one weight at a time: the sum over k of x[k] * (scale * q + bias).
float dot_plain(const RowPair& row) {
  // BEGIN task 2.2.3
  throw std::runtime_error("task 2.2.3");
  // END task 2.2.3
}

/// Rung 2. Scale and bias once a group: scale * (the sum of x * q) + bias * (the sum of x).
float dot_by_group(const RowPair& row) {
  // BEGIN task 2.2.4
  throw std::runtime_error("task 2.2.4");
  // END task 2.2.4
}

/// Returns kWidth words of a row, starting at `first`, with zeros after its end.
inline WordVec words_at(const RowPair& row, int64_t first) {
  int64_t left = row.columns * row.bits / 32 - first;
  return left >= kWidth ? load(row.words + first) : load_part(row.words + first, left);
}

/// Rung 3. A whole vector of words at a time. `x` is laid out so that field j of word w meets lane w of
/// vector j: x[(j * kWidth + w)] of a span of 32 / bits vectors is element w * (32 / bits) + j of the span.
/// `sums` [groups] has the sum of x over each group. A vector of words may span several groups, so
/// `scale_of_word` has one number for each word.
float dot_vectors(const RowPair& row, const float* sums, const float* scale_of_word) {
  // BEGIN task 2.2.5
  throw std::runtime_error("task 2.2.5");
  // END task 2.2.5
}

/// Rung 4. The same for every output n of every row m, shared among the threads: calls one(m, n, id) once for
/// each.
template <class One>
void share(ThreadPool& threads, int64_t rows, int64_t columns, const One& one) {
  // BEGIN task 2.2.6
  throw std::runtime_error("task 2.2.6");
  // END task 2.2.6
}

namespace {

/// Writes x[m] in the order of rung 3, and the sums of its groups.
void lay_out(const float* x, int64_t columns, int bits, int64_t group_size, float* out, float* sums) {
  int per_word = 32 / bits;
  for (int64_t k = 0; k < columns; ++k) {
    int64_t span = k / (per_word * kWidth), place = k % (per_word * kWidth);
    out[span * per_word * kWidth + place % per_word * kWidth + place / per_word] = x[k];
  }
  std::fill_n(sums, columns / group_size, 0.0f);
  for (int64_t k = 0; k < columns; ++k) sums[k / group_size] += x[k];
}

}  // namespace

/// Computes all outputs on rung `step`. Rung 4 uses all threads.
void quantized_matmul_step(ThreadPool& threads, int step, const Tensor& x, const Product& product) {
  const Matrix& w = product.matrix;
  int64_t columns = w.columns, words = columns * w.bits / 32, groups = columns / w.group_size;
  int64_t span = 32 / w.bits * kWidth, padded = rounded_up(columns, span), slots = rounded_up(groups, kWidth);
  float* plain = buffer<float>(threads, 0, kValues, x.shape[0] * (2 * padded + slots));
  float *laid = plain + x.shape[0] * padded, *sums = laid + x.shape[0] * padded;
  std::fill_n(laid, x.shape[0] * padded, 0.0f);
  for (int64_t m = 0; m < x.shape[0]; ++m) {
    widen(x.data, x.dtype, m * x.stride[0], columns, padded, plain + m * padded);
    lay_out(plain + m * padded, columns, w.bits, w.group_size, laid + m * padded, sums + m * slots);
  }
  auto one = [&](int64_t m, int64_t n, int id) {
    float* scales = buffer<float>(threads, id, kScales, 2 * slots + rounded_up(words, kWidth));
    float *biases = scales + slots, *of_word = biases + slots;
    widen(w.scales, w.dtype, n * groups, groups, slots, scales);
    widen(w.biases, w.dtype, n * groups, groups, slots, biases);
    RowPair row{plain + m * padded,
                static_cast<const uint32_t*>(w.data) + n * words,
                scales,
                biases,
                columns,
                w.group_size,
                w.bits};
    float result;
    if (step == 1) {
      result = dot_plain(row);
    } else if (step == 2) {
      result = dot_by_group(row);
    } else {
      for (int64_t i = 0; i < rounded_up(words, kWidth); ++i)
        of_word[i] = i < words ? scales[i * (32 / w.bits) / w.group_size] : 0.0f;
      row.x = laid + m * padded;
      result = dot_vectors(row, sums + m * slots, of_word);
    }
    narrow(&result, 1, product.out, m * product.out.stride[0] + n);
  };
  if (step >= 4) return share(threads, x.shape[0], w.rows, one);
  for (int64_t n = 0; n < w.rows; ++n)
    for (int64_t m = 0; m < x.shape[0]; ++m) one(m, n, 0);
}

}  // namespace tiny_llm::TINY_ISA
