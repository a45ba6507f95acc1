// Attention over rows and over pages as operators.
#pragma once

#include "operands.h"

namespace tiny_llm {

/// [B, H, L, D], or [B, L, H * D] if `flat`.
inline Array attention_over_rows(const Kernels* table, const Array& q, const Array& k, const Array& v,
                                 const Offsets& lengths, bool causal, float scale, bool flat) {
  require(q.ndim() == 4 && k.ndim() == 4 && v.shape() == k.shape(),
          "query, key and value must have 4 dimensions, key and value the same");
  require(
      q.shape(0) == k.shape(0) && q.shape(3) == k.shape(3) && k.shape(1) > 0 && q.shape(1) % k.shape(1) == 0,
      k.shape(1), " kv heads do not divide ", q.shape(1), " query heads");
  require_dtypes(q, k, v);
  require_float(k, "key and value");
  auto rows = per_row(lengths, q.shape(0));
  double stored = 0;
  for (int n : rows) {
    require(n >= q.shape(2) && n <= k.shape(2),
            "a row's length must be between its new tokens and what is stored");
    stored += n;
  }
  Cost cost{2 * stored * k.shape(1) * k.shape(3) * k.itemsize(),
            4.0 * stored * q.shape(1) * q.shape(2) * q.shape(3)};
  auto body = [table, rows, causal, scale](ThreadPool& threads, const auto& in, const auto& out) {
    int64_t heads = in[0].shape[1], length = in[0].shape[2], dim = in[0].shape[3];
    Tensor t = shaped(out[0], {in[0].shape[0], length, heads, dim});
    table->attention(threads, in[0], in[1], in[2], {in[0].shape[0], rows.data()}, causal, scale, t);
  };
  mx::Shape shape{q.shape(0), q.shape(2), q.shape(1), q.shape(3)};
  if (flat) shape = {q.shape(0), q.shape(2), q.shape(1) * q.shape(3)};
  Array out = make_operator("attention", {q, k, v}, {shape}, {q.dtype()}, body, cost)[0];
  return flat ? out : mx::transpose(out, {0, 2, 1, 3}, mx::Device::cpu);
}

/// What requests must be, and what their attention costs.
inline Cost cost_of_pages(int num_rows, int num_heads, const Array& pool, const std::vector<int>& starts,
                          const std::vector<int>& lengths, const Array& tables) {
  require(starts.size() == lengths.size() + 1 && starts.front() == 0 && starts.back() == num_rows &&
              tables.ndim() == 2 && static_cast<size_t>(tables.shape(0)) == lengths.size(),
          "starts must lead from 0 to the number of rows, with a length and a table for each request");
  Cost cost;
  for (size_t r = 0; r < lengths.size(); ++r) {
    int64_t rows = starts[r + 1] - starts[r], room = static_cast<int64_t>(tables.shape(1)) * pool.shape(2);
    require(rows >= 0 && lengths[r] >= rows && lengths[r] <= room,
            "a request's length must be between its rows and what its blocks hold");
    double row_bytes = pool.shape(3) * pool.itemsize() + (pool.dtype() == mx::int8 ? sizeof(float) : 0);
    cost.bytes += 2.0 * lengths[r] * pool.shape(1) * row_bytes;
    cost.flops += 4.0 * lengths[r] * num_heads * rows * pool.shape(3);
  }
  return cost;
}

/// Which requests packed rows belong to, and the blocks of each.
struct Pages {
  std::vector<int> starts, lengths;
  std::vector<int32_t> blocks;  // [R, width]
  int64_t width;

  /// Queries [T, H, 1, D] over `stored`, pools of keys and values, and of int8 the scales of both (`parts` is
  /// 4 then, else 2) -> `out`, T * H * D numbers in one piece.
  void attend(const Kernels* table, ThreadPool& threads, Tensor q, const Tensor* stored, size_t parts,
              float scale, const Tensor& out) const {
    // Tokens one behind the other in one row: [1, H, T, D].
    Tensor o = shaped(out, {1, q.shape[0], q.shape[1], q.shape[3]}), key = stored[0], value = stored[1];
    std::swap(q.shape[0], q.shape[2]), std::swap(q.stride[0], q.stride[2]);
    if (parts > 2)
      key.scales = static_cast<const float*>(stored[2].data),
      value.scales = static_cast<const float*>(stored[3].data);
    Requests requests{static_cast<int64_t>(lengths.size()), lengths.data(), starts.data(), blocks.data(),
                      width};
    table->attention(threads, q, key, value, requests, true, scale, o);
  }
};

/// [T, 1, H * D] of packed queries [T, H, 1, D] over pools [blocks, G, block size, D]; those of int8 come
/// with the scales of keys and values [blocks, G, block size].
inline Array attention_over_pages(const Kernels* table, const Array& q, const Array& k, const Array& v,
                                  const std::vector<int>& starts, const std::vector<int>& lengths,
                                  const Array& tables, float scale,
                                  const std::optional<std::pair<Array, Array>>& kv_scales) {
  require(q.ndim() == 4 && q.shape(2) == 1 && k.ndim() == 4 && v.shape() == k.shape() &&
              q.shape(3) == k.shape(3) && k.shape(1) > 0 && q.shape(1) % k.shape(1) == 0,
          "queries must be [T, H, 1, D] and both pools [blocks, G, block size, D], with G a divisor of H");
  require_dtypes(q, k, v);
  require_scales(k, kv_scales);
  Pages pages{starts, lengths, numbers(tables, "blocks", k.shape(0)), tables.shape(1)};
  Cost cost = cost_of_pages(q.shape(0), q.shape(1), k, starts, lengths, tables);
  std::vector<Array> inputs{q, k, v};
  if (kv_scales) inputs.insert(inputs.end(), {kv_scales->first, kv_scales->second});
  auto body = [table, pages = std::move(pages), scale](ThreadPool& threads, const auto& in, const auto& out) {
    pages.attend(table, threads, in[0], &in[1], in.size() - 1, scale, out[0]);
  };
  mx::Shape shape{q.shape(0), 1, q.shape(1) * q.shape(3)};
  // A scale is found by its row's number: pools of int8 and their scales lie in one piece each.
  Memory memory{.whole_from = kv_scales ? 1 : Memory{}.whole_from};
  return make_operator("paged attention", std::move(inputs), {shape}, {q.dtype()}, body, cost, memory)[0];
}

}  // namespace tiny_llm
