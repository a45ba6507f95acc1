// The largest numbers of rows as operators.
#pragma once

#include "operands.h"

namespace tiny_llm {

/// uint32 [...] of x [..., V]: the place of each row's largest number.
inline Array argmax_of_rows(const Kernels* table, const Array& x) {
  require_rows(x, "x");
  mx::Shape shape(x.shape().begin(), x.shape().end() - 1);
  auto body = [table](ThreadPool& threads, const auto& in, const auto& out) {
    table->argmax(threads, as_rows(in[0]), static_cast<uint32_t*>(out[0].data));
  };
  return make_operator("argmax", {evenly_spaced(x)}, {shape}, {mx::uint32}, body, {bytes_of(x), 0})[0];
}

/// float32 [..., k] of x [..., V]: each row's largest numbers, in falling order.
inline Array top_k_of_rows(const Kernels* table, const Array& x, int k) {
  require_rows(x, "x");
  require(k >= 1 && k <= x.shape(-1), "k must be 1 to ", x.shape(-1));
  mx::Shape shape = x.shape();
  shape.back() = k;
  auto body = [table, k](ThreadPool& threads, const auto& in, const auto& out) {
    table->top_k(threads, as_rows(in[0]), k, static_cast<float*>(out[0].data));
  };
  return make_operator("top_k", {evenly_spaced(x)}, {shape}, {mx::float32}, body, {bytes_of(x), 0})[0];
}

}  // namespace tiny_llm
