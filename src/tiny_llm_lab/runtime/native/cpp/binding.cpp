// The kernels of one package as Python functions on mx.array. Shapes: the course's legend.
#include <dlfcn.h>
#include <nanobind/stl/shared_ptr.h>

#include "append.h"
#include "attention.h"
#include "blocks.h"
#include "choice.h"
#include "delta.h"
#include "experts.h"
#include "gates.h"
#include "layer.h"
#include "stack_ops.h"
#include "storage.h"

namespace tiny_llm {
namespace {

class KernelSet {
 public:
  explicit KernelSet(const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    require(library != nullptr, library ? "" : dlerror());
    table_ = reinterpret_cast<decltype(&tiny_llm_kernels)>(dlsym(library, "tiny_llm_kernels"))();
  }

  std::vector<Array> linear(const Array& x, nb::list weights, nb::list biases) const {
    std::vector<Array> inputs{evenly_spaced(x)};
    Matrices matrices(x, weights, biases, inputs);
    require(!matrices.all.empty(), "linear takes one matrix or more");
    std::vector<mx::Shape> shapes(matrices.all.size(), x.shape());
    for (size_t i = 0; i < shapes.size(); ++i) shapes[i].back() = matrices.all[i].first.rows;
    std::vector<mx::Dtype> dtypes(shapes.size(), x.dtype());
    auto body = [table = table_, matrices](ThreadPool& threads, const auto& in, const auto& out) {
      Tensor x = as_rows(in[0]);
      auto products = matrices.products(x, in, out);
      table->linear(threads, x, products.data(), static_cast<int>(products.size()));
    };
    return make_operator("linear", std::move(inputs), std::move(shapes), std::move(dtypes), body,
                         matrices.cost(num_rows(x), x.itemsize()));
  }

  std::vector<Array> qkv_rope(const Array& x, const Array& norm, float eps, nb::list weights, nb::list biases,
                              const std::optional<Array>& query_norm, const std::optional<Array>& key_norm,
                              const Array& cos, const Array& sin, bool traditional, const Offsets& offsets,
                              int kept) const {
    return layer_qkv_rope(table_, x, norm, eps, weights, biases, query_norm, key_norm, cos, sin, traditional,
                          offsets, kept);
  }

  Array attn_out_mlp(const Array& x, const Array& attended, nb::handle out, const Array& norm, float eps,
                     nb::handle gate, nb::handle up, nb::handle down) const {
    return layer_attn_out_mlp(table_, x, attended, out, norm, eps, gate, up, down);
  }

  std::shared_ptr<LayerStack> layer_stack(nb::list layers, int dim, bool traditional) const {
    return std::make_shared<LayerStack>(table_, layers, dim, traditional);
  }

  Array quantized_matmul_step(int step, const Array& x, nb::handle weight) const {
    require_rows(x, "x");
    std::vector<Array> inputs{evenly_spaced(x)};
    Weight w(weight, inputs);
    require(w.bits > 0 && !w.in_blocks && step >= 1 && step <= 4, "steps 1 to 4 take packed weights in rows");
    w.require_fit(x);
    mx::Shape shape = x.shape();
    shape.back() = w.rows;
    auto body = [table = table_, step, w](ThreadPool& threads, const auto& in, const auto& out) {
      table->quantized_matmul_step(threads, step, as_rows(in[0]), {w.matrix(in), {}, as_rows(out[0]), {}});
    };
    return make_operator("quantized_matmul_step", std::move(inputs), {shape}, {x.dtype()}, body,
                         {w.bytes, 0})[0];
  }

  Array attention(const Array& q, const Array& k, const Array& v, const Offsets& lengths, bool causal,
                  float scale, bool flat) const {
    return attention_over_rows(table_, q, k, v, lengths, causal, scale, flat);
  }

  Array paged_attention(const Array& q, const Array& k, const Array& v, const std::vector<int>& starts,
                        const std::vector<int>& lengths, const Array& tables, float scale,
                        const std::optional<std::pair<Array, Array>>& kv_scales) const {
    return attention_over_pages(table_, q, k, v, starts, lengths, tables, scale, kv_scales);
  }

  /// (x, norm(x)), or (x + delta, norm(x + delta)).
  std::pair<Array, Array> rms_norm(const Array& x, const Array& weight, float eps,
                                   const std::optional<Array>& delta) const {
    require_rows(x, "x");
    require_vector(weight, x.shape(-1), "the norm's weight");
    std::vector<Array> inputs{evenly_spaced(x), weight};
    if (delta) {
      require_alike(x, *delta, "x and delta");
      inputs.push_back(evenly_spaced(*delta));
    }
    auto body = [table = table_, eps, has_delta = delta.has_value()](ThreadPool& threads, const auto& in,
                                                                     const auto& out) {
      table->rms_norm(threads, as_rows(in[0]), has_delta ? as_rows(in[2]) : Tensor{}, in[1], eps,
                      has_delta ? as_rows(out[1]) : Tensor{}, as_rows(out[0]));
    };
    size_t count = delta ? 2 : 1;
    auto out =
        make_operator("rms_norm", std::move(inputs), std::vector<mx::Shape>(count, x.shape()),
                      std::vector<mx::Dtype>(count, x.dtype()), body, {(delta ? 4 : 2) * bytes_of(x), 0});
    return {delta ? out[1] : x, out[0]};
  }

  Array rope(const Array& x, const Offsets& offsets, const Array& cos, const Array& sin, bool traditional,
             const std::optional<Array>& weight, float eps) const {
    require(x.ndim() == 4 && cos.ndim() == 2 && 2 * cos.shape(1) <= x.shape(3),
            "the tables do not fit the heads");
    require_rows(x, "x");
    std::vector<Array> inputs{x};
    auto rows = positions(x, offsets, cos, sin, inputs);
    if (weight) {
      require_vector(*weight, x.shape(3), "the norm's weight");
      inputs.push_back(*weight);
    }
    auto body = [table = table_, rows, traditional, eps](ThreadPool& threads, const auto& in,
                                                         const auto& out) {
      table->rope(threads, in[0], in.size() > 3 ? in[3] : Tensor{}, eps, in[1], in[2], rows.data(),
                  traditional, out[0]);
    };
    return make_operator("rope", std::move(inputs), {x.shape()}, {x.dtype()}, body, {2 * bytes_of(x), 0})[0];
  }

  Array append(const Array& stored, const Array& added, const Offsets& offsets) const {
    return append_tokens(stored, added, offsets);
  }

  Array append_rows(const Array& stored, const Array& added, const Array& slots) const {
    return append_to_slots(stored, added, slots);
  }

  /// x [..., D] as int8 [..., D], and the scales [...] of its rows.
  std::vector<Array> quantize_rows(const Array& x) const {
    require_rows(x, "x");
    mx::Shape rows(x.shape().begin(), x.shape().end() - 1);
    auto body = [table = table_](ThreadPool& threads, const auto& in, const auto& out) {
      table->quantize_rows(threads, as_rows(in[0]), static_cast<int8_t*>(out[0].data),
                           static_cast<float*>(out[1].data));
    };
    return make_operator("quantize_rows", {evenly_spaced(x)}, {x.shape(), rows}, {mx::int8, mx::float32},
                         body, {2 * bytes_of(x), 0});
  }

  std::pair<Array, std::vector<DeltaState>> gated_delta(const std::vector<Array>& rows, nb::handle weights,
                                                        const std::vector<DeltaState>& states,
                                                        const std::vector<int>& starts) const {
    return gated_delta_rows(table_, rows, weights, states, starts);
  }

  Array swiglu(const Array& gate, const Array& up) const { return swiglu_of_rows(table_, gate, up); }

  Array sigmoid_gate(const Array& x, const Array& gate) const { return gate_of_rows(table_, x, gate); }

  std::vector<Array> route(const Array& scores, int per_token, bool is_normed) const {
    return route_of_rows(table_, scores, per_token, is_normed);
  }

  Array expert_mlp(const Array& x, const Array& experts, const Array& shares, nb::handle gate, nb::handle up,
                   nb::handle down) const {
    return experts_of_rows(table_, x, experts, shares, gate, up, down);
  }

  /// Rows of a matrix. Tokens are known only when they are computed, so their range is not checked: a token
  /// outside 0 to V - 1 reads memory outside the matrix.
  Array embedding(const Array& tokens, nb::handle weight) const {
    bool is_whole =
        tokens.size() == 0 || mx::issubdtype(tokens.dtype(), mx::integer);  // mx.array([]) is of floats
    require(is_whole, "tokens must be whole numbers, not ", tokens.dtype(), ": use astype");
    std::vector<Array> inputs{
        mx::contiguous(mx::astype(tokens, mx::int32, mx::Device::cpu), false, mx::Device::cpu)};
    Weight w(weight, inputs);
    mx::Shape shape = tokens.shape();
    shape.push_back(w.columns);
    mx::Dtype dtype = inputs.back().dtype();
    auto body = [table = table_, w](ThreadPool& threads, const auto& in, const auto& out) {
      table->embedding(threads, static_cast<const int32_t*>(in[0].data), in[0].size(), w.matrix(in),
                       as_rows(out[0]));
    };
    return make_operator("embedding", std::move(inputs), {shape}, {dtype}, body, {})[0];
  }

  Array argmax(const Array& x) const { return argmax_of_rows(table_, x); }

  Array draw(const Array& logits, nb::handle how) const { return drawn_of_rows(table_, logits, how); }

  std::vector<Array> score(const Array& logits, const Array& tokens, int num_top) const {
    return scores_of_rows(table_, logits, tokens, num_top);
  }

 private:
  const Kernels* table_;
};

}  // namespace

NB_MODULE(_binding, m) {
  m.doc() = "C++ kernels as operators of MLX";
  nb::class_<LayerStack>(m, "LayerStack")
      .def("over_rows", &stack_over_rows, "x"_a, "offsets"_a, "cos"_a, "sin"_a, "stored"_a, "scale"_a,
           "kept"_a, "rows"_a.none(), "states"_a = StackStates())
      .def("over_new_rows", &stack_over_new_rows, "x"_a, "cos"_a, "sin"_a, "room"_a, "scale"_a, "kept"_a,
           "rows"_a.none(), "states"_a = StackStates())
      .def("over_pages", &stack_over_pages, "x"_a, "offsets"_a, "cos"_a, "sin"_a, "stored"_a, "slots"_a,
           "starts"_a, "lengths"_a, "tables"_a, "scale"_a, "kept"_a, "rows"_a.none(),
           "states"_a = StackStates());
  nb::class_<KernelSet>(m, "KernelSet")
      .def(nb::init<const std::string&>(), "path"_a)
      .def("linear", &KernelSet::linear, "x"_a, "weights"_a, "biases"_a = nb::list())
      .def("quantized_matmul_step", &KernelSet::quantized_matmul_step, "step"_a, "x"_a, "weight"_a)
      .def("attention", &KernelSet::attention, "query"_a, "key"_a, "value"_a, "lengths"_a, "causal"_a,
           "scale"_a, "flat"_a = false)
      .def("paged_attention", &KernelSet::paged_attention, "query"_a, "key"_a, "value"_a, "starts"_a,
           "lengths"_a, "tables"_a, "scale"_a, "kv_scales"_a = nb::none())
      .def("qkv_rope", &KernelSet::qkv_rope, "x"_a, "norm"_a, "eps"_a, "weights"_a, "biases"_a,
           "query_norm"_a.none(), "key_norm"_a.none(), "cos"_a, "sin"_a, "traditional"_a, "offsets"_a,
           "kept"_a)
      .def("attn_out_mlp", &KernelSet::attn_out_mlp, "x"_a, "attended"_a, "out"_a, "norm"_a, "eps"_a,
           "gate"_a, "up"_a, "down"_a)
      .def("layer_stack", &KernelSet::layer_stack, "layers"_a, "dim"_a, "traditional"_a)
      .def("rms_norm", &KernelSet::rms_norm, "x"_a, "weight"_a, "eps"_a, "delta"_a = nb::none())
      .def("rope", &KernelSet::rope, "x"_a, "offsets"_a, "cos"_a, "sin"_a, "traditional"_a = false,
           "weight"_a = nb::none(), "eps"_a = 0.0f)
      .def("append", &KernelSet::append, "stored"_a, "added"_a, "offsets"_a)
      .def(
          "grow",
          [](const KernelSet&, const Array& stored, int rows, int room, const std::vector<int>& used) {
            return grow_storage(stored, rows, room, used);
          },
          "stored"_a, "rows"_a, "room"_a, "used"_a)
      .def("append_rows", &KernelSet::append_rows, "stored"_a, "added"_a, "slots"_a)
      .def("quantize_rows", &KernelSet::quantize_rows, "x"_a)
      .def("gated_delta", &KernelSet::gated_delta, "rows"_a, "weights"_a, "states"_a, "starts"_a)
      .def("swiglu", &KernelSet::swiglu, "gate"_a, "up"_a)
      .def("sigmoid_gate", &KernelSet::sigmoid_gate, "x"_a, "gate"_a)
      .def("route", &KernelSet::route, "scores"_a, "per_token"_a, "is_normed"_a)
      .def("expert_mlp", &KernelSet::expert_mlp, "x"_a, "experts"_a, "shares"_a, "gate"_a, "up"_a, "down"_a)
      .def("embedding", &KernelSet::embedding, "tokens"_a, "weight"_a)
      .def("argmax", &KernelSet::argmax, "x"_a)
      .def("draw", &KernelSet::draw, "logits"_a, "how"_a)
      .def("score", &KernelSet::score, "logits"_a, "tokens"_a, "num_top"_a);
  // Without Python's lock, see `evaluate`.
  m.def("in_blocks", &in_blocks, "matrices"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def("set_num_threads", &set_num_threads, "count"_a);
  m.def("num_threads", &num_threads);
  m.def("settle", &settle);
  m.def("start_profile", &start_profile);
  m.def("stop_profile", [] {
    std::vector<std::tuple<std::string, double, double, double>> out;
    for (auto& note : stop_profile()) out.emplace_back(note.name, note.seconds, note.bytes, note.flops);
    return out;
  });
}

}  // namespace tiny_llm
