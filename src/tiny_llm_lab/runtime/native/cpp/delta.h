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

/// What each request has in its slot: conv inputs [slots, K - 1, C] and matrices [slots, Hv, Dk, Dv] float32.
struct DeltaSlots {
  std::vector<int32_t> starts, slots, offsets, kept;

  void require_fit(int64_t rows, int64_t room) const {
    size_t count = slots.size();
    require(starts.size() == count + 1 && offsets.size() == count && kept.size() == count &&
                starts.front() == 0 && starts.back() == rows,
            "starts must lead from 0 to the number of rows, with a slot, an offset and a number of kept rows "
            "for each request");
    std::vector<bool> is_used(room);
    for (size_t r = 0; r < count; ++r) {
      require(starts[r] < starts[r + 1], "every request must have a row or more");
      require(slots[r] >= 0 && slots[r] < room && !is_used[slots[r]], "slots must be 0 to ", room - 1,
              ", each once");
      require(kept[r] >= 0 && kept[r] <= starts[r + 1] - starts[r], "a request keeps at most its rows");
      is_used[slots[r]] = true;
    }
  }
};

/// Key heads of rows [T, ...] = qkv, z, a, b with a state [slots, Hv, Dk, Dv] and the last conv inputs.
inline int key_heads(const std::vector<Array>& rows, const Array& tails, const Array& matrices, int taps) {
  require(matrices.ndim() == 4 && matrices.dtype() == mx::float32,
          "states must be float32 [slots, Hv, Dk, Dv]");
  require(rows.size() == 4 && rows[0].ndim() == 2, "rows are qkv, z, a and b, each [T, ...]");
  int heads = matrices.shape(1), key_dim = matrices.shape(2), values = heads * matrices.shape(3);
  int count = rows[0].shape(0), channels = rows[0].shape(1), keys = channels - values;
  require(keys > 0 && keys % (2 * key_dim) == 0 && heads % (keys / (2 * key_dim)) == 0, channels,
          " channels do not fit ", heads, " value heads with states of ", key_dim, " rows");
  const int widths[] = {channels, values, heads, heads};
  for (int i = 0; i < 4; ++i) {
    mx::Shape shape{count, widths[i]};
    require(rows[i].shape() == shape, "rows must be ", shape, ", not ", rows[i].shape());
    require_float(rows[i], "rows");
  }
  require(
      tails.shape() == mx::Shape{matrices.shape(0), taps - 1, channels} && tails.dtype() == rows[0].dtype(),
      "conv inputs must be [slots, K - 1, channels] of the rows' dtype");
  return keys / (2 * key_dim);
}

/// (out [T, Hv * Dv], tails, matrices). The last two are written in their own memory, as pools of keys and
/// values are.
inline std::vector<Array> gated_delta_rows(const Kernels* table, const std::vector<Array>& rows,
                                           nb::handle weights, const Array& tails, const Array& matrices,
                                           DeltaSlots where) {
  DeltaWeights w(weights);
  require(w.conv.ndim() == 2, "the convolution must be [K, channels], not ", w.conv.shape());
  int heads = key_heads(rows, tails, matrices, w.conv.shape(0));
  w.require_fit(rows[0].shape(1), matrices.shape(1), matrices.shape(3));
  where.require_fit(rows[0].shape(0), matrices.shape(0));
  double state = static_cast<double>(matrices.size()) / matrices.shape(0);  // numbers of one request
  Cost cost{2 * sizeof(float) * state * where.slots.size() + bytes_of(rows[0]) + 2 * bytes_of(rows[1]),
            8 * state * rows[0].shape(0)};
  auto body = [table, eps = w.eps, heads, where = std::move(where)](ThreadPool& threads, const auto& in,
                                                                    const auto& out) {
    const Tensor& states = out[2];
    DeltaNet net{in[4], in[5], in[6], in[7], eps, heads, states.shape[2], states.shape[1], states.shape[3]};
    table->gated_delta(threads, net, {in[0], in[1], in[2], in[3]},
                       {static_cast<int64_t>(where.slots.size()), where.starts.data(), where.slots.data(),
                        where.offsets.data(), where.kept.data(), out[1], static_cast<float*>(states.data)},
                       out[0]);
  };
  std::vector<Array> inputs = rows;
  inputs.insert(inputs.end(), {w.conv, w.a_log, w.dt_bias, w.norm, tails, matrices});
  Memory memory{.in_place = InPlace::always, .whole_from = 4, .continued = 1, .stored = 8};
  return make_operator("gated delta", std::move(inputs), {rows[1].shape(), tails.shape(), matrices.shape()},
                       {rows[1].dtype(), tails.dtype(), matrices.dtype()}, body, cost, memory);
}

}  // namespace tiny_llm
