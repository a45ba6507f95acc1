// One layer of a stack as Python holds it: attention or a gated delta net, and what follows.
#pragma once

#include "delta.h"
#include "layer.h"

namespace tiny_llm {

/// The projections of a gated delta net, the eps of its norms (of x, and of its outputs), and how many tokens
/// its convolution sees.
struct NetInputs {
  Matrices matrices;
  float eps, net_eps;
  int taps;

  std::array<int, 4> widths() const {
    std::array<int, 4> rows;
    for (int i = 0; i < 4; ++i) rows[i] = matrices.all[i].first.rows;
    return rows;
  }
};

/// One layer, with the tensors of its parts' inputs that no step changes.
struct StackLayer {
  std::optional<Heads> heads;  // attention, or
  std::optional<NetInputs> net;
  OutMlp rest;
  std::vector<Tensor> mixer_in, rest_in;
};

/// `inputs` get tables, which a step brings, and the weights.
inline Heads heads_of(const Kernels* table, nb::handle layer, const Array& x, float eps, int64_t dim,
                      bool traditional, std::vector<Array>& inputs) {
  auto maybe = [&](const char* name) {
    nb::object vector = layer.attr(name);
    return vector.is_none() ? std::optional<Array>() : std::optional<Array>(array_of(vector, name));
  };
  inputs.insert(inputs.end(), {inputs[1], inputs[1]});
  auto query_norm = maybe("query_norm"), key_norm = maybe("key_norm");
  add_norms(query_norm, key_norm, dim, inputs);
  Matrices matrices(x, layer.attr("qkv"), layer.attr("biases"), inputs);
  require(matrices.all.size() == 3, "a layer has three matrices of heads");
  matrices.require_heads_of(dim);
  bool has_gate = nb::cast<bool>(layer.attr("has_gate"));
  return {table, matrices, eps, traditional, query_norm.has_value(), dim, has_gate};
}

inline NetInputs net_of(nb::handle layer, const Array& x, float eps, std::vector<Array>& inputs) {
  DeltaWeights w(layer.attr("net"));
  inputs.insert(inputs.end(), {w.conv, w.a_log, w.dt_bias, w.norm});
  Matrices matrices(x, layer.attr("qkv"), nb::list(), inputs);
  auto rows = [&](size_t i) { return matrices.all[i].first.rows; };
  require(matrices.all.size() == 4 && w.norm.ndim() == 1 && rows(2) * w.norm.shape(0) == rows(1) &&
              rows(3) == rows(2),
          "the projections of a gated delta net do not fit each other");
  w.require_fit(rows(0), rows(2), w.norm.shape(0));
  return {matrices, eps, w.eps, w.conv.shape(0)};
}

/// What follows the mixer of a layer, whose x is like `x`. `inputs` get the weights.
inline OutMlp rest_of(const Kernels* table, nb::handle layer, const Array& x, const Array& norm, float eps,
                      std::vector<Array>& inputs) {
  Weight out(layer.attr("out"), inputs);
  nb::object gate = layer.attr("gate"), up = layer.attr("up"), down = layer.attr("down");
  auto mlp = [&]() -> std::variant<DenseMlp, Mixture> {
    nb::object mixture = layer.attr("mixture");
    if (mixture.is_none()) return DenseMlp(x, gate, up, down, inputs);
    return Mixture(x, mixture, gate, up, down, inputs);
  };
  OutMlp rest{table, eps, out, mlp()};
  rest.require_fit(x, norm);
  return rest;
}

/// `layer` has the fields of LayerWeights; heads are `dim` wide. `held` gets the arrays that become tensors.
inline StackLayer stack_layer(const Kernels* table, nb::handle layer, int64_t dim, bool traditional,
                              std::vector<Array>& held) {
  Array norm = array_of(layer.attr("norm"), "norm"), mlp_norm = array_of(layer.attr("mlp_norm"), "mlp_norm"),
        x = mx::zeros({1, 1, norm.shape(0)}, mx::float32);
  float eps = nb::cast<float>(layer.attr("eps"));
  require_vector(norm, x.shape(2), "the norm's weight");
  // What a step brings, x and tables or x and what was mixed, has a place among the inputs.
  std::vector<Array> first{norm, norm}, second{norm, norm, mlp_norm};
  std::optional<Heads> heads;
  std::optional<NetInputs> net;
  if (layer.attr("net").is_none())
    heads = heads_of(table, layer, x, eps, dim, traditional, first);
  else
    net = net_of(layer, x, eps, first);
  OutMlp rest = rest_of(table, layer, x, mlp_norm, eps, second);
  int mixed = (net ? net->matrices.all[1] : heads->matrices.all[0]).first.rows;
  require(mixed == (heads && heads->has_gate ? 2 : 1) * rest.out.columns,
          "the output projection does not fit the heads");
  for (auto* inputs : {&first, &second}) held.insert(held.end(), inputs->begin(), inputs->end());
  return {heads, net, rest, std::vector<Tensor>(first.size()), std::vector<Tensor>(second.size())};
}

}  // namespace tiny_llm
