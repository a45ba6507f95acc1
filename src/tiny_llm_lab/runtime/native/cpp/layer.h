// The two operators that a transformer layer consists of besides its attention: several kernels in one node
// of the graph, because a node costs some microseconds whatever it computes.
#pragma once

#include <variant>

#include "experts.h"

namespace tiny_llm {

/// The norms of heads of `dim` as inputs, if there are any.
inline void add_norms(const std::optional<Array>& query_norm, const std::optional<Array>& key_norm, int dim,
                      std::vector<Array>& inputs) {
  require(query_norm.has_value() == key_norm.has_value(), "queries and keys have both a norm, or none");
  if (!query_norm) return;
  require_vector(*query_norm, dim, "the norm of queries");
  require_vector(*key_norm, dim, "the norm of keys");
  inputs.insert(inputs.end(), {*query_norm, *key_norm});
}

/// What a layer computes before its attention: queries, keys and values of norm(x).
struct Heads {
  const Kernels* table;
  Matrices matrices;
  float eps;
  bool traditional, has_norms;
  int64_t dim;
  bool has_gate = false;  // then a head of the queries is 2 D wide: the query, and its gate

  /// Of x [B, L, E], whose rows begin at the positions `first`: queries [B, kept, H, D] of the last `kept`
  /// tokens, keys and values [B, L, G, D]. `in`: x, the norm, tables of cosines and sines, the norms of heads
  /// if there are any, then what `matrices` added.
  void compute(ThreadPool& threads, const std::vector<Tensor>& in, const std::vector<int32_t>& first,
               int64_t kept, const Tensor* out) const {
    Tensor x = as_rows(in[0]), normed = shaped({nullptr, x.dtype}, {x.shape[0], x.shape[1]});
    int64_t batch = in[0].shape[0], length = in[0].shape[1];
    normed.data = threads.scratch(0, kBindingSlot, x.size() * bytes_per(x.dtype));
    table->rms_norm(threads, x, {}, in[1], eps, {}, normed);
    auto products = matrices.products(normed, in, {out, out + 3});
    if (kept == length) {
      table->linear(threads, normed, products.data(), 3);
    } else {
      table->linear(threads, normed, &products[1], 2);
      for (int64_t b = 0; b < batch && kept > 0; ++b) {
        Tensor last = rows_of(normed, b * length + length - kept, kept);
        products[0].out = rows_of(shaped(out[0], {batch * kept, products[0].matrix.rows}), b * kept, kept);
        table->linear(threads, last, &products[0], 1);
      }
    }
    for (size_t i = 0; i < 2; ++i) {
      int64_t tokens = i == 0 ? kept : length, wide = i == 0 && has_gate ? 2 * dim : dim;
      Tensor t = shaped(out[i], {batch, tokens, products[i].matrix.rows / wide, wide});
      t.shape[3] = dim;
      std::vector<int32_t> at = first;
      for (auto& offset : at) offset += length - tokens;
      if (tokens > 0)
        table->rope(threads, t, has_norms ? in[4 + i] : Tensor{}, eps, in[2], in[3], at.data(), traditional,
                    t);
    }
  }
};

/// Queries [B, H, kept, D] of the last `kept` tokens, keys and values [B, G, L, D], all of norm(x) with x [B,
/// L, E]: projected, normalised if there are norms of heads, rotated.
inline std::vector<Array> layer_qkv_rope(const Kernels* table, const Array& x, const Array& norm, float eps,
                                         nb::list weights, nb::list biases,
                                         const std::optional<Array>& query_norm,
                                         const std::optional<Array>& key_norm, const Array& cos,
                                         const Array& sin, bool traditional, const Offsets& offsets,
                                         int kept) {
  require(x.ndim() == 3, "x must be [B, L, E], not ", x.shape());
  int batch = x.shape(0), length = x.shape(1);
  require(weights.size() == 3 && kept >= 0 && kept <= length,
          "qkv_rope takes three matrices and keeps 0 to L tokens");
  require_rows(x, "x");
  require_vector(norm, x.shape(2), "the norm's weight");
  std::vector<Array> inputs{evenly_spaced(x), norm};
  auto first = positions(x, offsets, cos, sin, inputs);
  int dim = 2 * cos.shape(1);
  add_norms(query_norm, key_norm, dim, inputs);
  Heads heads{table, Matrices(x, weights, biases, inputs), eps, traditional, query_norm.has_value(), dim};
  heads.matrices.require_heads_of(dim);
  std::vector<mx::Shape> shapes;
  for (size_t i = 0; i < 3; ++i) {
    int count = heads.matrices.all[i].first.rows / dim, tokens = i == 0 ? kept : length;
    // One token a row lies in memory alike in both orders of the dimensions.
    shapes.push_back(length == 1 ? mx::Shape{batch, count, tokens, dim}
                                 : mx::Shape{batch, tokens, count, dim});
  }
  Cost cost = heads.matrices.cost(num_rows(x), x.itemsize());
  auto body = [=](ThreadPool& threads, const auto& in, const auto& out) {
    heads.compute(threads, in, first, kept, out.data());
  };
  auto out = make_operator("qkv_rope", std::move(inputs), std::move(shapes),
                           std::vector<mx::Dtype>(3, x.dtype()), body, cost);
  if (length > 1)
    for (auto& part : out) part = mx::transpose(part, {0, 2, 1, 3}, mx::Device::cpu);
  return out;
}

/// What a layer computes after its attention.
struct OutMlp {
  const Kernels* table;
  float eps;
  Weight out;
  std::variant<DenseMlp, Mixture> mlp;

  void require_fit(const Array& x, const Array& norm) const {
    require_vector(norm, x.shape(-1), "the norm's weight");
    require(out.rows == x.shape(-1), "the matrices do not fit x, or each other");
  }

  /// `in`: x, what was attended, the norm, then what the matrices added. `result` may be x.
  void compute(ThreadPool& threads, const std::vector<Tensor>& in, const Tensor& result) const {
    std::visit([&](auto& mlp) { compute_with(mlp, threads, in, result); }, mlp);
  }

  /// Of `rows` rows of numbers of `itemsize` bytes.
  Cost cost(double rows, double itemsize) const {
    Cost sum = std::visit([&](auto& mlp) { return mlp.cost(rows, itemsize); }, mlp);
    sum.bytes += rows * (2.0 * out.rows + out.columns) * itemsize + out.bytes;
    sum.flops += 2.0 * rows * out.rows * out.columns;
    return sum;
  }

 private:
  template <class Mlp>
  void compute_with(const Mlp& mlp, ThreadPool& threads, const std::vector<Tensor>& in,
                    const Tensor& result) const {
    constexpr int64_t kRows = 512;  // whose numbers between the products stay in the cache
    Tensor all = as_rows(in[0]), attended = as_rows(in[1]), results = as_rows(result);
    for (int64_t row = 0; row < all.shape[0]; row += kRows) {
      int64_t count = std::min(kRows, all.shape[0] - row), width = all.shape[1];
      Tensor x = rows_of(all, row, count);
      Pieces pieces(threads, kBindingSlot,
                    count * (3 * width + mlp.width()) * bytes_per(x.dtype) + 12 * Pieces::kStep);
      Tensor projected = pieces.like(x, width), y = pieces.like(x, width), normed = pieces.like(x, width);
      Product projection{out.matrix(in), {}, projected, {}};
      table->linear(threads, rows_of(attended, row, count), &projection, 1);
      table->rms_norm(threads, x, projected, in[2], eps, y, normed);
      mlp.compute(table, threads, in, pieces, normed, y, rows_of(results, row, count));
    }
  }
};

/// What follows attention: y = x + attended out^T, and of that y + (silu(n gate^T) * (n up^T)) down^T with n
/// = norm(y).
inline Array layer_attn_out_mlp(const Kernels* table, const Array& x, const Array& attended, nb::handle out,
                                const Array& norm, float eps, nb::handle gate, nb::handle up,
                                nb::handle down) {
  require_rows(x, "x");
  require_rows(attended, "what was attended");
  std::vector<Array> inputs{evenly_spaced(x), evenly_spaced(attended), norm};
  Weight projection(out, inputs);
  OutMlp rest{table, eps, projection, DenseMlp(x, gate, up, down, inputs)};
  rest.require_fit(x, norm), rest.out.require_fit(attended);
  require(num_rows(attended) == num_rows(x), "the matrices do not fit x, or each other");
  auto body = [=](ThreadPool& threads, const auto& in, const auto& out) {
    rest.compute(threads, in, out[0]);
  };
  mx::Shape shape = x.shape();
  return make_operator("attn_out_mlp", std::move(inputs), {shape}, {x.dtype()}, body,
                       rest.cost(num_rows(x), x.itemsize()))[0];
}

}  // namespace tiny_llm
