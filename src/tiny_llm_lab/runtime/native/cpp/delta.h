// The gated delta net over packed rows as an operator.
#pragma once

#include "operands.h"

namespace tiny_llm {

/// The weights of a gated delta net between its projections, as Python holds them.
struct DeltaWeights {
  Array conv, a_log, dt_bias, norm;  // [K, C], [Hv], [Hv], [Dv]
  float eps;

  explicit DeltaWeights(nb::handle w)
      : conv(array_of(w.attr("conv"), "conv")),
        a_log(array_of(w.attr("a_log"), "a_log")),
        dt_bias(array_of(w.attr("dt_bias"), "dt_bias")),
        norm(array_of(w.attr("norm"), "norm")),
        eps(nb::cast<float>(w.attr("eps"))) {}

  void require_fit(int channels, int heads, int value_dim) const {
    require(conv.ndim() == 2 && conv.shape(0) > 0 && conv.shape(1) == channels,
            "the convolution must be [K, ", channels, "], not ", conv.shape());
    require_float(conv, "the convolution");
    require_vector(a_log, heads, "a_log");
    require_vector(dt_bias, heads, "dt_bias");
    require_vector(norm, value_dim, "the norm's weight");
  }
};

/// What is remembered of one request: conv inputs [K - 1, C], floats, and matrices [Hv, Dk, Dv] float32.
using DeltaState = std::pair<Array, Array>;

/// Key heads of rows [T, ...] = qkv, z, a, b with states `like` this one.
inline int key_heads(const std::vector<Array>& rows, const Array& matrices) {
  require(matrices.ndim() == 3, "a state must be [Hv, Dk, Dv], not ", matrices.shape());
  require(rows.size() == 4 && rows[0].ndim() == 2, "rows are qkv, z, a and b, each [T, ...]");
  int heads = matrices.shape(0), key_dim = matrices.shape(1), values = heads * matrices.shape(2);
  int count = rows[0].shape(0), channels = rows[0].shape(1), keys = channels - values;
  require(keys > 0 && keys % (2 * key_dim) == 0 && heads % (keys / (2 * key_dim)) == 0, channels,
          " channels do not fit ", heads, " value heads with states of ", key_dim, " rows");
  const int widths[] = {channels, values, heads, heads};
  for (int i = 0; i < 4; ++i) {
    mx::Shape shape{count, widths[i]};
    require(rows[i].shape() == shape, "rows must be ", shape, ", not ", rows[i].shape());
    require_float(rows[i], "rows");
  }
  return keys / (2 * key_dim);
}

/// States that fit the rows, and a row or more for each request.
inline void require_states(const std::vector<Array>& rows, const std::vector<DeltaState>& states,
                           const std::vector<int>& starts, int taps) {
  require(!states.empty() && starts.size() == states.size() + 1 && starts.front() == 0 &&
              starts.back() == rows[0].shape(0),
          "starts must lead from 0 to the number of rows, with a state for each request");
  for (size_t r = 0; r < states.size(); ++r) {
    require(starts[r] < starts[r + 1], "every request must have a row or more");
    auto& [tail, matrices] = states[r];
    mx::Shape shape{taps - 1, rows[0].shape(1)};
    require(tail.shape() == shape, "conv inputs must be ", shape, ", not ", tail.shape());
    require_float(tail, "conv inputs");
    require(matrices.shape() == states[0].second.shape() && matrices.dtype() == mx::float32,
            "states must be alike, and float32");
  }
}

/// out [T, Hv * Dv], and the states after the rows, each in its own memory if nothing else refers to that.
inline std::pair<Array, std::vector<DeltaState>> gated_delta_rows(const Kernels* table,
                                                                  const std::vector<Array>& rows,
                                                                  nb::handle weights,
                                                                  const std::vector<DeltaState>& states,
                                                                  const std::vector<int>& starts) {
  DeltaWeights w(weights);
  require(w.conv.ndim() == 2 && !states.empty(),
          "the convolution must be [K, channels], with a state or more");
  int heads = key_heads(rows, states[0].second), count = static_cast<int>(states.size());
  const mx::Shape shape = states[0].second.shape();
  w.require_fit(rows[0].shape(1), shape[0], shape[2]);
  require_states(rows, states, starts, w.conv.shape(0));
  std::vector<Array> inputs = rows;
  inputs.insert(inputs.end(), {w.conv, w.a_log, w.dt_bias, w.norm});
  std::vector<mx::Shape> shapes{rows[1].shape()};
  std::vector<mx::Dtype> dtypes{rows[1].dtype()};
  for (auto part : {&DeltaState::first, &DeltaState::second})
    for (auto& state : states) {
      inputs.push_back(state.*part);
      shapes.push_back((state.*part).shape());
      dtypes.push_back((state.*part).dtype());
    }
  double numbers = static_cast<double>(states[0].second.size());
  Cost cost{2 * sizeof(float) * numbers * count + bytes_of(rows[0]) + 2 * bytes_of(rows[1]),
            8 * numbers * rows[0].shape(0)};
  auto body = [table, eps = w.eps, heads, shape, count,
               starts = std::vector<int32_t>(starts.begin(), starts.end())](ThreadPool& threads,
                                                                            const auto& in, const auto& out) {
    std::vector<float*> matrices(count);
    for (int r = 0; r < count; ++r) matrices[r] = static_cast<float*>(out[1 + count + r].data);
    DeltaNet net{in[4], in[5], in[6], in[7], eps, heads, shape[1], shape[0], shape[2]};
    table->gated_delta(threads, net, {in[0], in[1], in[2], in[3]},
                       {count, starts.data(), &out[1], matrices.data()}, out[0]);
  };
  Memory memory{.in_place = InPlace::if_free, .whole_from = 4, .continued = 1, .stored = 8};
  auto out = make_operator("gated delta", std::move(inputs), std::move(shapes), std::move(dtypes), body, cost,
                           memory);
  std::vector<DeltaState> after;
  for (int r = 0; r < count; ++r) after.emplace_back(out[1 + r], out[1 + count + r]);
  return {out[0], std::move(after)};
}

}  // namespace tiny_llm
