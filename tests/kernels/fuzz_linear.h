// Products of rows and matrices, dense and packed.
#pragma once

#include "fuzz.h"

namespace fuzz {

/// A matrix in buffers of its exact size, and its numbers.
struct AnyMatrix {
  Matrix m, in_blocks;  // by rows, and in blocks if it is packed or has whole groups of 64 columns
  Memory words, blocks[3];
  Array dense, scales, biases;
  double size;  // bounds its numbers

  AnyMatrix(int64_t rows, int64_t columns, int bits, int group, DType dtype, double size) : size(size) {
    m = {nullptr, nullptr, nullptr, dtype, rows, columns, bits ? group : 0, bits};
    if (bits == 0) {
      dense = filled(dtype, {rows, columns}, size);
      m.data = dense.t.data, in_blocks = m;
      if (columns % 64 > 0) return;
      in_blocks.in_blocks = true;
      in_blocks.data = to_blocks(m.data, columns * bytes_of(dtype) / 4, 4, blocks[0]);
      return;
    }
    int64_t bytes = rows * columns * bits / 8;
    words = exactly(bytes);
    for (int64_t i = 0; i < bytes / 4; ++i) static_cast<uint32_t*>(words.get())[i] = uint32_t(random_bits());
    scales = filled(dtype, {rows, columns / group}, size / (1 << bits));
    biases = filled(dtype, {rows, columns / group}, size);
    m.data = words.get(), m.scales = scales.t.data, m.biases = biases.t.data;
    this->size = 2 * size;
    in_blocks = m, in_blocks.in_blocks = true;
    in_blocks.data = to_blocks(m.data, bytes / rows / 4, 4, blocks[0]);
    in_blocks.scales = to_blocks(m.scales, columns / group, bytes_of(dtype), blocks[1]);
    in_blocks.biases = to_blocks(m.biases, columns / group, bytes_of(dtype), blocks[2]);
  }

  /// Numbers [rows, count], `bytes` each, in blocks. What is behind the last row is NaN.
  const void* to_blocks(const void* from, int64_t count, int bytes, Memory& to) const {
    to = exactly((m.rows + 63) / 64 * 64 * count * bytes);
    auto* out = static_cast<char*>(to.get());
    auto* in = static_cast<const char*>(from);
    for (int64_t row = 0; row < m.rows; ++row)
      for (int64_t k = 0; k < count; ++k, in += bytes)
        std::memcpy(out + ((row / 16 * count + k) * 16 + row % 16) * bytes, in, bytes);
    return to.get();
  }

  /// One of the two.
  const Matrix& any() const { return one_in(2) ? m : in_blocks; }

  double operator()(int64_t n, int64_t k) const {
    if (m.bits == 0) return dense(n, k);
    uint32_t word = static_cast<const uint32_t*>(m.data)[(n * m.columns + k) * m.bits / 32];
    double q = word >> (k * m.bits % 32) & ((1u << m.bits) - 1);
    return q * scales(n, k / m.group_size) + biases(n, k / m.group_size);
  }
};

/// Few rows, tiles with a rest, and more than a block of 512 rows.
inline int64_t any_rows() { return one_in(3) ? whole(1, 3) : one_in(9) ? whole(510, 530) : whole(1, 70); }

/// Each group of numbers rounded to 127ths of its largest, half to even: what bytes stand for.
inline void round_to_bytes(std::vector<double>& numbers, int64_t group) {
  for (auto first = numbers.begin(); first < numbers.end(); first += group) {
    float largest = 0, smallest = std::numeric_limits<float>::min();
    for (auto x = first; x < first + group; ++x) largest = std::max(largest, std::fabs(float(*x)));
    float scale = largest / 127.0f, inverse = scale < smallest ? 0.0f : 1.0f / scale;
    for (auto x = first; x < first + group; ++x)
      *x = double(std::nearbyint(float(*x) * inverse)) * double(scale);
  }
}

inline void check_product(const Array& x, const AnyMatrix& w, const Array* bias, const Array& out,
                          double x_size, const Array* residual = nullptr) {
  int64_t M = out.t.shape[0], K = w.m.columns;
  std::vector<double> rows, row(K);
  for (int64_t m = 0; m < M; ++m)
    for (int64_t k = 0; k < K; ++k) rows.push_back(x(m, k));
  if (w.m.activation_bits == 8) round_to_bytes(rows, std::min<int64_t>(32, w.m.group_size));
  for (int64_t n = 0; n < w.m.rows; ++n) {
    for (int64_t k = 0; k < K; ++k) row[k] = w(n, k);
    for (int64_t m = 0; m < M; ++m) {
      double added = bias ? (*bias)(n) : 0.0, passed = residual ? (*residual)(m, n) : 0.0;
      double want = added + passed, size = std::fabs(added) + std::fabs(passed);
      const double *left = rows.data() + m * K, *right = row.data();
      for (int64_t k = 0; k < K; ++k) want += left[k] * right[k];
      size += std::sqrt(double(w.m.columns)) * x_size * w.size;
      judge.check(out(m, n), want, size, "of a product");
    }
  }
}

/// A row alone has the same bits as among others, however the matrix is stored.
inline void check_alone(ThreadPool& threads, const Array& x, Product product, const AnyMatrix& w) {
  int64_t m = whole(0, x.t.shape[0] - 1), N = w.m.rows;
  Tensor row = x.t, among = product.out;
  Array out = empty(among.dtype, {1, N});
  row.data = x.at(m), row.shape[0] = 1, product.out = out.t, product.matrix = w.any();
  if (product.residual.data)
    product.residual.data = static_cast<char*>(product.residual.data) +
                            m * product.residual.stride[0] * bytes_of(product.residual.dtype);
  kernels.linear(threads, row, &product, 1);
  const char* at = static_cast<const char*>(among.data) + m * among.stride[0] * bytes_of(among.dtype);
  for (int64_t n = 0; n < N; ++n, at += bytes_of(among.dtype))
    judge.equal(out(0, n), decode(at, among.dtype), "of a row alone");
}

inline void linear(ThreadPool& threads) {
  DType dtype = any_dtype(), stored = any_dtype();
  int bits = one_of({0, 4, 8}), group = one_of({32, 64, 128}), count = int(whole(1, 3));
  bool has_bytes = bits && one_in(2);
  int64_t M = any_rows(), most = M < 20 && one_in(3) ? 4096 / group : 9;  // groups of several panels
  int64_t K = bits ? group * whole(1, most) : one_in(2) ? 64 * whole(1, 18) : whole(1, one_in(2) ? 40 : 1200);
  double size = any_size(dtype);
  Array x = filled(dtype, {M, K}, size, false);
  std::vector<AnyMatrix> weights;
  std::vector<Array> biases, residuals, outs;
  std::vector<Product> products;
  for (int i = 0; i < count; ++i) {
    int64_t N = whole(1, one_in(3) ? 300 : 40);
    DType own = bits || one_in(3) ? any_dtype() : stored;
    weights.emplace_back(N, K, bits, group, own, any_size(dtype == DType::f16 ? dtype : own));
    weights[i].m.activation_bits = weights[i].in_blocks.activation_bits = has_bytes ? 8 : 16;
    biases.push_back(filled(any_dtype(), {N}, std::min(4.0, size)));
    outs.push_back(empty(dtype, {M, N}));
    residuals.push_back(filled(any_dtype(), {M, N}, std::min(4.0, size), false));
    products.push_back({weights[i].any(), one_in(2) ? biases[i].t : Tensor{}, outs[i].t,
                        one_in(2) ? residuals[i].t : Tensor{}});
  }
  std::string name = bits ? "linear " + std::to_string(bits) + " bits" : "linear dense";
  if (has_bytes) name += " of bytes";
  judge.begin(name.c_str(), dtype);
  kernels.linear(threads, x.t, products.data(), count);
  // 16-bit activations of packed products are rounded to 2^-16 of their group's largest: at worst all the
  // same way. Bytes are rounded in `check_product` as well. A field is up to twice its weight before the
  // bias is added: so are float32's roundings.
  double coarser = !bits ? 1.0 : dtype == DType::f32 || has_bytes ? 2.0 : 32 * std::sqrt(double(K));
  for (int i = 0; i < count; ++i)
    check_product(x, weights[i], products[i].bias.data ? &biases[i] : nullptr, outs[i], size * coarser,
                  products[i].residual.data ? &residuals[i] : nullptr);
  int64_t checked = whole(0, count - 1);
  check_alone(threads, x, products[checked], weights[checked]);
}

inline void quantized_matmul_step(ThreadPool& threads) {
  DType dtype = any_dtype();
  int group = one_of({32, 64, 128});
  int64_t M = whole(1, 5), K = group * whole(1, 5), N = whole(1, one_in(3) ? 300 : 40);
  double size = any_size(dtype);
  Array x = filled(dtype, {M, K}, size, false), out = empty(dtype, {M, N});
  AnyMatrix w(N, K, one_of({4, 8}), group, any_dtype(), any_size(DType::f16));
  judge.begin("quantized_matmul_step", dtype);
  kernels.quantized_matmul_step(threads, int(whole(1, 4)), x.t, {w.m, {}, out.t, {}});
  check_product(x, w, nullptr, out, 2 * size);  // the first steps add everything up in one lane
}

}  // namespace fuzz
