// A mixture of experts: the choice of each token and what its experts make of it as operators, and both as
// what a layer of a stack ends with.
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

/// One network: what follows the norm in a layer without experts, or the expert of every token.
struct DenseMlp {
  Weight gate, up, down;

  DenseMlp(const Array& x, nb::handle gate, nb::handle up, nb::handle down, std::vector<Array>& inputs)
      : gate(gate, inputs), up(up, inputs), down(down, inputs) {
    this->gate.require_fit(x), this->up.require_like(this->gate);
    require(this->down.columns == this->gate.rows && this->up.rows == this->gate.rows &&
                this->down.rows == x.shape(-1),
            "the matrices do not fit x, or each other");
  }

  int64_t width() const { return 2 * gate.rows; }

  /// y + down(silu(gate(normed)) * up(normed)) -> `result`; y may be no tensor.
  void compute(const Kernels* table, ThreadPool& threads, const std::vector<Tensor>& in, Pieces& pieces,
               const Tensor& normed, const Tensor& y, const Tensor& result) const {
    Tensor gated = pieces.like(normed, gate.rows), raised = pieces.like(normed, gate.rows);
    Product two[] = {{gate.matrix(in), {}, gated, {}}, {up.matrix(in), {}, raised, {}}};
    table->linear(threads, normed, two, 2);
    table->swiglu(threads, gated, raised, gated);
    Product last{down.matrix(in), {}, result, y};
    table->linear(threads, gated, &last, 1);
  }

  Cost cost(double rows, double) const {
    return {gate.bytes + up.bytes + down.bytes, 6.0 * rows * gate.rows * gate.columns};
  }
};

/// An expert of every token, times the sigmoid of its gate [1, E].
struct SharedExpert {
  DenseMlp mlp;
  Weight gate;

  /// `weights` are gate, up and down [S, E] and [E, S], and its own gate.
  SharedExpert(const Array& x, nb::list weights, std::vector<Array>& inputs)
      : mlp(x, weights[0], weights[1], weights[2], inputs), gate(weights[3], inputs) {
    gate.require_fit(x);
    require(gate.rows == 1, "the gate of a shared expert has one row, not ", gate.rows);
  }
};

/// What follows the norm in a layer with experts, in the same steps and with the same roundings as operators.
struct Mixture {
  Weight router;
  ExpertWeights experts;
  int per_token;
  bool is_normed;
  std::optional<SharedExpert> shared;

  /// `mixture` has the fields of `MixtureWeights`.
  Mixture(const Array& x, nb::handle mixture, nb::handle gate, nb::handle up, nb::handle down,
          std::vector<Array>& inputs)
      : router(mixture.attr("router"), inputs),
        experts(x, gate, up, down, inputs),
        per_token(nb::cast<int>(mixture.attr("per_token"))),
        is_normed(nb::cast<bool>(mixture.attr("is_normed"))) {
    router.require_fit(x);
    require(router.rows == experts.gate.count && per_token > 0 && per_token <= router.rows,
            "the router does not fit the experts");
    auto weights = nb::cast<nb::list>(mixture.attr("shared"));
    if (weights.size() > 0) shared.emplace(x, weights, inputs);
  }

  /// The most numbers of a row that `compute` takes from `pieces`: an expert and its share have 8 bytes.
  int64_t width() const {
    return router.rows + 4 * per_token + (shared ? shared->mlp.width() + router.columns + 1 : 0);
  }

  /// y + what the experts make of `normed` [T, E] -> `result`.
  void compute(const Kernels* table, ThreadPool& threads, const std::vector<Tensor>& in, Pieces& pieces,
               const Tensor& normed, const Tensor& y, const Tensor& result) const {
    int64_t rows = normed.shape[0];
    auto product = [&](const Weight& w, const Tensor& out) {
      Product one{w.matrix(in), {}, out};
      table->linear(threads, normed, &one, 1);
    };
    Tensor scores = pieces.like(normed, router.rows), added[] = {y, y};
    Tensor ids = pieces.take(DType::u32, {rows, per_token}, 4),
           shares = pieces.take(DType::f32, {rows, per_token}, 4);
    if (shared) {
      Tensor open = pieces.like(normed, 1);
      added[0] = pieces.like(normed, router.columns);
      shared->mlp.compute(table, threads, in, pieces, normed, {}, added[0]);
      product(shared->gate, open);
      table->sigmoid_gate(threads, added[0], open, added[0]);
    }
    product(router, scores);
    auto* chosen = static_cast<uint32_t*>(ids.data);
    auto* share = static_cast<float*>(shares.data);
    table->route(threads, scores, per_token, is_normed, chosen, share);
    table->expert_mlp(threads, normed, experts.experts(in), {chosen, share, per_token}, added + !shared,
                      shared ? 2 : 1, result);
  }

  Cost cost(double rows, double itemsize) const {
    Cost sum = experts.cost(rows * per_token, itemsize);
    sum.bytes += router.bytes, sum.flops += 2 * rows * router.rows * router.columns;
    if (!shared) return sum;
    Cost of_shared = shared->mlp.cost(rows, itemsize);
    return {sum.bytes + of_shared.bytes, sum.flops + of_shared.flops};
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
    table->expert_mlp(threads, as_rows(in[0]), weights.experts(in), chosen, nullptr, 0, as_rows(out[0]));
  };
  mx::Shape shape = x.shape();
  return make_operator("expert_mlp", std::move(inputs), {shape}, {x.dtype()}, body,
                       weights.cost(static_cast<double>(experts.size()), x.itemsize()))[0];
}

}  // namespace tiny_llm
