// The gated delta net over packed rows as an operator.
#pragma once

#include <array>

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

/// The sizes of a net with `channels` whose states are [Hv, Dk, Dv].
struct DeltaSizes {
  int channels, heads, key_dim, value_dim, key_heads;

  DeltaSizes(int channels, const Array& matrices) : channels(channels) {
    require(matrices.ndim() == 3, "a state must be [Hv, Dk, Dv], not ", matrices.shape());
    heads = matrices.shape(0), key_dim = matrices.shape(1), value_dim = matrices.shape(2);
    int keys = channels - heads * value_dim;
    require(keys > 0 && keys % (2 * key_dim) == 0 && heads % (keys / (2 * key_dim)) == 0, channels,
            " channels do not fit ", heads, " value heads with states of ", key_dim, " rows");
    key_heads = keys / (2 * key_dim);
  }

  /// The widths of a token's inputs: qkv, z, a and b.
  std::array<int, 4> widths() const { return {channels, heads * value_dim, heads, heads}; }

  /// Of `rows` tokens of `count` requests, in numbers of `itemsize` bytes.
  Cost cost(double rows, double count, double itemsize) const {
    double numbers = static_cast<double>(heads) * key_dim * value_dim;
    return {2 * sizeof(float) * numbers * count + rows * itemsize * (channels + 2.0 * heads * value_dim),
            8 * numbers * rows};
  }
};

/// Where each request's rows begin, [R + 1]: a row or more for each.
inline void require_starts(const std::vector<int>& starts, int num_rows) {
  require(starts.size() > 1 && starts.front() == 0 && starts.back() == num_rows,
          "starts must lead from 0 to the number of rows, with a state for each request");
  for (size_t r = 1; r < starts.size(); ++r)
    require(starts[r - 1] < starts[r], "every request must have a row or more");
}

/// States that fit each other and the net.
inline void require_states(const std::vector<DeltaState>& states, const DeltaSizes& sizes, int taps) {
  mx::Shape shape{sizes.heads, sizes.key_dim, sizes.value_dim}, tail_shape{taps - 1, sizes.channels};
  for (auto& [tail, matrices] : states) {
    require(tail.shape() == tail_shape, "conv inputs must be ", tail_shape, ", not ", tail.shape());
    require_float(tail, "conv inputs");
    require(matrices.shape() == shape && matrices.dtype() == mx::float32,
            "states must be alike, and float32");
  }
}

/// Inputs and outputs of an operator that continues states: first the tails of all, then the matrices.
inline void add_states(const std::vector<DeltaState>& states, std::vector<Array>& inputs,
                       std::vector<mx::Shape>& shapes, std::vector<mx::Dtype>& dtypes) {
  for (auto part : {&DeltaState::first, &DeltaState::second})
    for (auto& state : states) {
      inputs.push_back(state.*part);
      shapes.push_back((state.*part).shape());
      dtypes.push_back((state.*part).dtype());
    }
}

/// The states that `add_states` made outputs of, from number `first` on.
inline std::vector<DeltaState> states_of(const std::vector<Array>& out, size_t first, size_t count) {
  std::vector<DeltaState> states;
  for (size_t r = first; r < first + count; ++r) states.emplace_back(out[r], out[r + count]);
  return states;
}

/// A net over packed rows. `rows`: qkv, z, a and b; `weights`: conv, a_log, dt_bias and the norm; `states`,
/// in the order of `add_states`, are changed, and their matrices begin as those of `before`.
inline void run_delta(const Kernels* table, ThreadPool& threads, const DeltaSizes& sizes, float eps,
                      const std::vector<int32_t>& starts, const Tensor* rows, const Tensor* weights,
                      const Tensor* states, const Tensor* before, const Tensor& out) {
  int count = static_cast<int>(starts.size()) - 1;
  std::vector<float*> matrices(count), sources(count);
  for (int r = 0; r < count; ++r) {
    matrices[r] = static_cast<float*>(states[count + r].data);
    sources[r] = static_cast<float*>(before[count + r].data);
  }
  DeltaNet net{weights[0],      weights[1],    weights[2],  weights[3],     eps,
               sizes.key_heads, sizes.key_dim, sizes.heads, sizes.value_dim};
  table->gated_delta(threads, net, {rows[0], rows[1], rows[2], rows[3]},
                     {count, starts.data(), states, matrices.data(), sources.data()}, out);
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
  require(rows.size() == 4 && rows[0].ndim() == 2, "rows are qkv, z, a and b, each [T, ...]");
  DeltaSizes sizes(rows[0].shape(1), states[0].second);
  for (int i = 0; i < 4; ++i) {
    mx::Shape shape{rows[0].shape(0), sizes.widths()[i]};
    require(rows[i].shape() == shape, "rows must be ", shape, ", not ", rows[i].shape());
    require_float(rows[i], "rows");
  }
  w.require_fit(sizes.channels, sizes.heads, sizes.value_dim);
  require(starts.size() == states.size() + 1, "starts must have one number more than there are states");
  require_starts(starts, rows[0].shape(0));
  require_states(states, sizes, w.conv.shape(0));
  std::vector<Array> inputs = rows;
  inputs.insert(inputs.end(), {w.conv, w.a_log, w.dt_bias, w.norm});
  std::vector<mx::Shape> shapes{rows[1].shape()};
  std::vector<mx::Dtype> dtypes{rows[1].dtype()};
  add_states(states, inputs, shapes, dtypes);
  auto body = [table, eps = w.eps, sizes, starts = std::vector<int32_t>(starts.begin(), starts.end())](
                  ThreadPool& threads, const auto& in, const auto& out) {
    run_delta(table, threads, sizes, eps, starts, &in[0], &in[4], &out[1], &in[8], out[0]);
  };
  // A draft keeps the states before it: 150 MB a request in a model of 27 billion, if one thread copies them.
  Memory memory{.in_place = InPlace::if_free, .whole_from = 4, .continued = 1, .stored = 8};
  memory.uncopied = 1 + states.size();
  auto out = make_operator("gated delta", std::move(inputs), std::move(shapes), std::move(dtypes), body,
                           sizes.cost(rows[0].shape(0), states.size(), rows[0].itemsize()), memory);
  return {out[0], states_of(out, 1, states.size())};
}

}  // namespace tiny_llm
