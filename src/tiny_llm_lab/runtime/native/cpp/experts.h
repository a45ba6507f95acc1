// A mixture of experts as operators: the choice of each token, and what its experts make of it.
#pragma once

#include "operands.h"

namespace tiny_llm {

/// The matrices of all experts [N, I, E], [N, I, E] and [N, E, I].
struct ExpertWeights {
  Weight gate, up, down;

  ExpertWeights(const Array& x, nb::handle gate, nb::handle up, nb::handle down, std::vector<Array>& inputs)
      : gate(gate, inputs, true), up(up, inputs, true), down(down, inputs, true) {
    this->gate.require_fit(x), this->up.require_like(this->gate);
    require(this->up.rows == this->gate.rows && this->down.columns == this->gate.rows &&
                this->down.rows == x.shape(-1) && this->up.count == this->gate.count &&
                this->down.count == this->gate.count,
            "the experts' matrices do not fit x, or each other");
  }

  Experts experts(const std::vector<Tensor>& in) const {
    return {gate.matrix(in), up.matrix(in), down.matrix(in), gate.count};
  }

  /// Of `uses` uses of numbers of `itemsize` bytes, by as many experts as there can be.
  Cost cost(double uses, double itemsize) const {
    double part = std::min(1.0, uses / gate.count), size = static_cast<double>(gate.rows) * gate.columns;
    return {part * (gate.bytes + up.bytes + down.bytes) + 2 * uses * gate.columns * itemsize,
            6 * uses * size};
  }
};

/// Experts uint32 [T, K] and shares float32 [T, K] of scores [T, N].
inline std::vector<Array> route_of_rows(const Kernels* table, const Array& scores, int per_token,
                                        bool is_normed) {
  require_rows(scores, "scores");
  require(scores.ndim() == 2 && per_token > 0 && per_token <= scores.shape(1),
          "scores must be [T, N], and a token has 1 to N experts, not ", per_token);
  auto body = [table, per_token, is_normed](ThreadPool& threads, const auto& in, const auto& out) {
    table->route(threads, as_rows(in[0]), per_token, is_normed, static_cast<uint32_t*>(out[0].data),
                 static_cast<float*>(out[1].data));
  };
  mx::Shape shape{scores.shape(0), per_token};
  return make_operator("route", {evenly_spaced(scores)}, {shape, shape}, {mx::uint32, mx::float32}, body,
                       {bytes_of(scores), 0});
}

/// [T, E]: the sum of what `experts` [T, K] make of x [T, E], times their `shares` [T, K].
inline Array experts_of_rows(const Kernels* table, const Array& x, const Array& experts, const Array& shares,
                             nb::handle gate, nb::handle up, nb::handle down) {
  require_rows(x, "x");
  bool is_right = x.ndim() == 2 && experts.ndim() == 2 && experts.shape(0) == x.shape(0) &&
                  experts.shape(1) > 0 && experts.shape() == shares.shape();
  require(is_right && experts.dtype() == mx::uint32 && shares.dtype() == mx::float32,
          "experts must be uint32 [T, K], and shares float32, for x of [T, E]");
  std::vector<Array> inputs{evenly_spaced(x), one_piece(experts), one_piece(shares)};
  ExpertWeights weights(x, gate, up, down, inputs);
  auto body = [table, weights](ThreadPool& threads, const auto& in, const auto& out) {
    Chosen chosen{static_cast<const uint32_t*>(in[1].data), static_cast<const float*>(in[2].data),
                  in[1].shape[1]};
    table->expert_mlp(threads, as_rows(in[0]), weights.experts(in), chosen, as_rows(out[0]));
  };
  mx::Shape shape = x.shape();
  return make_operator("expert_mlp", std::move(inputs), {shape}, {x.dtype()}, body,
                       weights.cost(static_cast<double>(experts.size()), x.itemsize()))[0];
}

}  // namespace tiny_llm
