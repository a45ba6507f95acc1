// The kernels of one package as Python functions on mx.array. Shapes: the course's legend.
#include <dlfcn.h>

#include "attention.h"
#include "layer.h"
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
    auto body = [table = table_, matrices](Team& team, const auto& in, const auto& out) {
      Tensor x = as_rows(in[0]);
      auto products = matrices.products(x, in, out);
      table->linear(team, x, products.data(), static_cast<int>(products.size()));
    };
    return make_operator("linear", std::move(inputs), std::move(shapes), std::move(dtypes), body, matrices.cost);
  }

  std::vector<Array> heads(const Array& x, const Array& norm, float eps, nb::list weights, nb::list biases,
                           const std::optional<Array>& query_norm, const std::optional<Array>& key_norm,
                           const Array& cos, const Array& sin, bool traditional, const Offsets& offsets, int kept) const {
    return layer_heads(table_, x, norm, eps, weights, biases, query_norm, key_norm, cos, sin, traditional, offsets, kept);
  }

  Array rest(const Array& x, const Array& attended, nb::handle out, const Array& norm, float eps, nb::handle gate,
             nb::handle up, nb::handle down) const {
    return layer_rest(table_, x, attended, out, norm, eps, gate, up, down);
  }

  Array quantized_matmul_step(int step, const Array& x, nb::handle weight) const {
    require_rows(x, "x");
    std::vector<Array> inputs{evenly_spaced(x)};
    Weight w(weight, inputs);
    require(w.bits > 0 && step >= 1 && step <= 4, "steps 1 to 4 take packed weights");
    w.require_fit(x);
    mx::Shape shape = x.shape();
    shape.back() = w.rows;
    auto body = [table = table_, step, w](Team& team, const auto& in, const auto& out) {
      table->quantized_matmul_step(team, step, as_rows(in[0]), {w.matrix(in), {}, as_rows(out[0]), {}});
    };
    return make_operator("quantized_matmul_step", std::move(inputs), {shape}, {x.dtype()}, body, {w.bytes, 0})[0];
  }

  Array attention(const Array& q, const Array& k, const Array& v, const Offsets& lengths, bool causal, float scale,
                  bool flat) const {
    return attention_over_rows(table_, q, k, v, lengths, causal, scale, flat);
  }

  Array paged_attention(const Array& q, const Array& k, const Array& v, const std::vector<int>& starts,
                        const std::vector<int>& lengths, const Array& tables, float scale,
                        const std::optional<std::pair<Array, Array>>& kv_scales) const {
    return attention_over_pages(table_, q, k, v, starts, lengths, tables, scale, kv_scales);
  }

  /// (x, norm(x)), or (x + delta, norm(x + delta)).
  std::pair<Array, Array> rms_norm(const Array& x, const Array& weight, float eps, const std::optional<Array>& delta) const {
    require_rows(x, "x");
    require_vector(weight, x.shape(-1), "the norm's weight");
    std::vector<Array> inputs{evenly_spaced(x), weight};
    if (delta) {
      require_alike(x, *delta, "x and delta");
      inputs.push_back(evenly_spaced(*delta));
    }
    auto body = [table = table_, eps, has_delta = delta.has_value()](Team& team, const auto& in, const auto& out) {
      table->rms_norm(team, as_rows(in[0]), has_delta ? as_rows(in[2]) : Tensor{}, in[1], eps,
                      has_delta ? as_rows(out[1]) : Tensor{}, as_rows(out[0]));
    };
    size_t count = delta ? 2 : 1;
    auto out = make_operator("rms_norm", std::move(inputs), std::vector<mx::Shape>(count, x.shape()), std::vector<mx::Dtype>(count, x.dtype()), body,
                             {(delta ? 4 : 2) * bytes_of(x), 0});
    return {delta ? out[1] : x, out[0]};
  }

  Array rope(const Array& x, const Offsets& offsets, const Array& cos, const Array& sin, bool traditional,
             const std::optional<Array>& weight, float eps) const {
    require(x.ndim() == 4 && cos.ndim() == 2 && 2 * cos.shape(1) == x.shape(3), "the tables do not fit the heads");
    require_rows(x, "x");
    std::vector<Array> inputs{x};
    auto rows = positions(x, offsets, cos, sin, inputs);
    if (weight) {
      require_vector(*weight, x.shape(3), "the norm's weight");
      inputs.push_back(*weight);
    }
    auto body = [table = table_, rows, traditional, eps](Team& team, const auto& in, const auto& out) {
      table->rope(team, in[0], in.size() > 3 ? in[3] : Tensor{}, eps, in[1], in[2], rows.data(), traditional, out[0]);
    };
    return make_operator("rope", std::move(inputs), {x.shape()}, {x.dtype()}, body, {2 * bytes_of(x), 0})[0];
  }

  /// `stored` [R, G, S, D] with `added` [B, G, L, D] written into its first B rows from offsets[b] on.
  Array append(const Array& stored, const Array& added, const Offsets& offsets) const {
    require_fit(stored, added);
    require(added.shape(0) <= stored.shape(0), "what is added does not fit what is stored");
    auto rows = per_row(offsets, added.shape(0));
    for (int offset : rows)
      require(offset >= 0 && offset <= stored.shape(2) - added.shape(2), "what is added does not fit into the room");
    return append_at(InPlace::if_free, stored, added, [rows = std::move(rows)](const Tensor&, int64_t b, int64_t l) {
      return std::pair<int64_t, int64_t>{b, rows[b] + l};
    });
  }

  /// The pool `stored` [blocks, G, block size, D] with row t of `added` [T, G, 1, D] written to slots[t], which is
  /// block * block size + place; or a pool of the scales of such rows, both without D. Written in its own memory, even
  /// while the step before reads it: a copy would cost more than the step.
  Array append_rows(const Array& stored, const Array& added, const Array& slots) const {
    require_fit(stored, added);
    auto where = numbers(slots, "slots", static_cast<int64_t>(stored.shape(0)) * stored.shape(2));
    require(static_cast<int>(where.size()) == added.shape(0) && added.shape(2) == 1,
            where.size(), " slots for ", added.shape(0), " rows");
    return append_at(InPlace::always, stored, added, [where = std::move(where)](const Tensor& to, int64_t t, int64_t) {
      return std::pair<int64_t, int64_t>{where[t] / to.shape[2], where[t] % to.shape[2]};
    });
  }

  /// x [..., D] as int8 [..., D], and the scales [...] of its rows.
  std::vector<Array> quantize_rows(const Array& x) const {
    require_rows(x, "x");
    mx::Shape rows(x.shape().begin(), x.shape().end() - 1);
    auto body = [table = table_](Team& team, const auto& in, const auto& out) {
      table->quantize_rows(team, as_rows(in[0]), static_cast<int8_t*>(out[0].data), static_cast<float*>(out[1].data));
    };
    return make_operator("quantize_rows", {evenly_spaced(x)}, {x.shape(), rows}, {mx::int8, mx::float32}, body, {2 * bytes_of(x), 0});
  }

  Array swiglu(const Array& gate, const Array& up) const {
    require_rows(gate, "the gate");
    require_alike(gate, up, "gate and up");
    auto body = [table = table_](Team& team, const auto& in, const auto& out) {
      table->swiglu(team, as_rows(in[0]), as_rows(in[1]), as_rows(out[0]));
    };
    return make_operator("swiglu", {evenly_spaced(gate), evenly_spaced(up)}, {gate.shape()}, {gate.dtype()}, body, {3 * bytes_of(gate), 0})[0];
  }

  /// Rows of a matrix. Which tokens there are is known only when they are computed: one that is no row's number
  /// reads what lies outside the matrix.
  Array embedding(const Array& tokens, nb::handle weight) const {
    bool is_whole = tokens.size() == 0 || mx::issubdtype(tokens.dtype(), mx::integer);  // mx.array([]) is of floats
    require(is_whole, "tokens must be whole numbers, not ", tokens.dtype(), ": use astype");
    std::vector<Array> inputs{mx::contiguous(mx::astype(tokens, mx::int32, mx::Device::cpu), false, mx::Device::cpu)};
    Weight w(weight, inputs);
    mx::Shape shape = tokens.shape();
    shape.push_back(w.columns);
    mx::Dtype dtype = inputs.back().dtype();
    auto body = [table = table_, w](Team& team, const auto& in, const auto& out) {
      table->embedding(team, static_cast<const int32_t*>(in[0].data), in[0].size(), w.matrix(in), as_rows(out[0]));
    };
    return make_operator("embedding", std::move(inputs), {shape}, {dtype}, body, {})[0];
  }

  Array argmax(const Array& x) const {
    require_rows(x, "x");
    mx::Shape shape(x.shape().begin(), x.shape().end() - 1);
    auto body = [table = table_](Team& team, const auto& in, const auto& out) {
      table->argmax(team, as_rows(in[0]), static_cast<uint32_t*>(out[0].data));
    };
    return make_operator("argmax", {evenly_spaced(x)}, {shape}, {mx::uint32}, body, {bytes_of(x), 0})[0];
  }

  Array top_k(const Array& x, int k) const {
    require_rows(x, "x");
    require(k >= 1 && k <= x.shape(-1), "k must be 1 to ", x.shape(-1));
    mx::Shape shape = x.shape();
    shape.back() = k;
    auto body = [table = table_, k](Team& team, const auto& in, const auto& out) {
      table->top_k(team, as_rows(in[0]), k, static_cast<float*>(out[0].data));
    };
    return make_operator("top_k", {evenly_spaced(x)}, {shape}, {mx::float32}, body, {bytes_of(x), 0})[0];
  }

 private:
  static void require_fit(const Array& stored, const Array& added) {
    size_t ndim = stored.ndim();
    require((ndim == 3 || ndim == 4) && added.ndim() == ndim && added.shape(1) == stored.shape(1) &&
                (ndim == 3 || added.shape(3) == stored.shape(3)) && added.dtype() == stored.dtype(),
            "what is added does not fit what is stored");
  }

  /// Token l of row b goes to place(stored, b, l): a row of what is stored, and a token of it. Keys and values are
  /// appended one by one: MLX gives an operator its input's memory only if that is the single output of another.
  template <class Place>
  static Array append_at(InPlace in_place, const Array& stored, const Array& added, Place place) {
    int64_t size = stored.itemsize(), line = size * (stored.ndim() == 4 ? stored.shape(3) : 1);
    auto body = [place = std::move(place), size, line](Team&, const auto& in, const auto& out) {
      const Tensor &from = in[1], &to = out[0];
      for (int64_t b = 0; b < from.shape[0]; ++b)
        for (int64_t l = 0; l < from.shape[2]; ++l) {
          auto [row, token] = place(to, b, l);
          for (int64_t g = 0; g < from.shape[1]; ++g)
            std::memcpy(static_cast<char*>(to.data) + (row * to.stride[0] + g * to.stride[1] + token * to.stride[2]) * size,
                        static_cast<const char*>(from.data) + (b * from.stride[0] + g * from.stride[1] + l * from.stride[2]) * size,
                        line);
        }
    };
    return make_operator("append", {stored, added}, {stored.shape()}, {stored.dtype()}, body, {2 * bytes_of(added), 0}, {.in_place = in_place})[0];
  }

  const Kernels* table_;
};

}  // namespace

NB_MODULE(_binding, m) {
  m.doc() = "C++ kernels as operators of MLX";
  nb::class_<KernelSet>(m, "KernelSet")
      .def(nb::init<const std::string&>(), "path"_a)
      .def("linear", &KernelSet::linear, "x"_a, "weights"_a, "biases"_a = nb::list())
      .def("quantized_matmul_step", &KernelSet::quantized_matmul_step, "step"_a, "x"_a, "weight"_a)
      .def("attention", &KernelSet::attention, "query"_a, "key"_a, "value"_a, "lengths"_a, "causal"_a, "scale"_a,
           "flat"_a = false)
      .def("paged_attention", &KernelSet::paged_attention, "query"_a, "key"_a, "value"_a, "starts"_a, "lengths"_a, "tables"_a,
           "scale"_a, "kv_scales"_a = nb::none())
      .def("heads", &KernelSet::heads, "x"_a, "norm"_a, "eps"_a, "weights"_a, "biases"_a, "query_norm"_a.none(),
           "key_norm"_a.none(), "cos"_a, "sin"_a, "traditional"_a, "offsets"_a, "kept"_a)
      .def("rest", &KernelSet::rest, "x"_a, "attended"_a, "out"_a, "norm"_a, "eps"_a, "gate"_a, "up"_a, "down"_a)
      .def("rms_norm", &KernelSet::rms_norm, "x"_a, "weight"_a, "eps"_a, "delta"_a = nb::none())
      .def("rope", &KernelSet::rope, "x"_a, "offsets"_a, "cos"_a, "sin"_a, "traditional"_a = false, "weight"_a = nb::none(), "eps"_a = 0.0f)
      .def("append", &KernelSet::append, "stored"_a, "added"_a, "offsets"_a)
      .def("grow", [](const KernelSet&, const Array& stored, int rows, int room, const std::vector<int>& used) {
        return grow_storage(stored, rows, room, used);
      }, "stored"_a, "rows"_a, "room"_a, "used"_a)
      .def("append_rows", &KernelSet::append_rows, "stored"_a, "added"_a, "slots"_a)
      .def("quantize_rows", &KernelSet::quantize_rows, "x"_a)
      .def("swiglu", &KernelSet::swiglu, "gate"_a, "up"_a)
      .def("embedding", &KernelSet::embedding, "tokens"_a, "weight"_a)
      .def("argmax", &KernelSet::argmax, "x"_a)
      .def("top_k", &KernelSet::top_k, "x"_a, "k"_a);
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
