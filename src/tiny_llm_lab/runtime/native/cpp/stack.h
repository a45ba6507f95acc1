// All layers of a model as one node of the graph: planned, started and ended once a step. What is computed
// are the parts of the operators for one layer, in the same order, so that the results are the same to the
// bit.
#pragma once

#include "append.h"
#include "attention.h"
#include "stack_layer.h"

namespace tiny_llm {

/// [B, L, H, D] as [B, H, L, D], the same memory.
inline Tensor heads_first(Tensor t) {
  std::swap(t.shape[1], t.shape[2]), std::swap(t.stride[1], t.stride[2]);
  return t;
}

/// How a layer stores its new tokens and attends to what is stored then: queries [B, H, kept, D], keys and
/// values [B, G, L, D], the layer's storage -> [B, kept, H, D].
using Attend = std::function<void(ThreadPool&, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const std::vector<Tensor>& stored, const Tensor& out)>;

/// One step: B rows of L tokens, of which the last layer goes on with some.
struct StackCall {
  int64_t batch, length;
  std::vector<int32_t> first;            // [B] position of each row's first token
  int64_t kept;                          // tokens of a row that have queries in the last layer
  std::optional<std::vector<int>> rows;  // of the batch that go on there, in this order; none: all
  Attend attend;
  // For layers with states: their sizes, where each request's rows begin, and the first output that is one.
  std::optional<DeltaSizes> sizes;
  std::vector<int32_t> starts = {0};
  size_t first_state = 0;
};

// An operator in flight keeps it alive by C++ alone: dropping a Python object would wait for the interpreter.
class LayerStack : public std::enable_shared_from_this<LayerStack> {
 public:
  /// `layers` are objects with the fields of LayerWeights; heads are `dim` wide. One layer or more has
  /// attention.
  LayerStack(const Kernels* table, nb::list layers, int dim, bool traditional) : table_(table), dim_(dim) {
    require(layers.size() > 0, "a stack has one layer or more");
    std::vector<Array> held;
    for (nb::handle layer : layers) {
      layers_.push_back(stack_layer(table, layer, dim, traditional, held));
      const auto& net = layers_.back().net;
      if (!net && attention_ < 0) attention_ = layers_.size() - 1;
      if (net && num_nets_++ == 0) net_ = layers_.size() - 1;
      require(!net || (net->widths() == this->net().widths() && net->taps == this->net().taps),
              "the gated delta nets of a stack have one size");
    }
    require(attention_ >= 0, "a stack has one layer with attention or more");
    evaluate(held);
    size_t next = 0;
    for (auto& layer : layers_)
      for (auto* inputs : {&layer.mixer_in, &layer.rest_in})
        for (auto& tensor : *inputs) tensor = tensor_of(held[next++]);
    held_ = std::move(held);
  }

  int64_t num_nets() const { return num_nets_; }
  int64_t num_attention() const { return layers_.size() - num_nets_; }
  int64_t width() const { return layers_[0].rest.out.rows; }
  int64_t num_heads() const { return layers_[attention_].rest.out.columns / dim_; }
  int64_t num_groups() const { return heads().matrices.all[1].first.rows / dim_; }
  int64_t dim() const { return dim_; }
  bool has_gate() const { return heads().has_gate; }
  const NetInputs& net() const { return *layers_[net_].net; }
  const Kernels* table() const { return table_; }

  /// `in`: x [B, L, E] and the tables; `out`: x behind the last layer, the storage of keys and values,
  /// `parts` tensors a layer, those of all layers behind each other, and the states of each layer with a net.
  void compute(ThreadPool& threads, const std::vector<Tensor>& in, const std::vector<Tensor>& out,
               const StackCall& call) const {
    DType dtype = in[0].dtype;
    int64_t batch = call.batch, length = call.length, item = bytes_per(dtype), queries = query_width();
    size_t parts = (call.first_state - 1) / num_attention(), num_states = 2 * (call.starts.size() - 1);
    auto net = call.sizes ? call.sizes->widths() : std::array<int, 4>{};
    int64_t mixed_width = std::max<int64_t>(num_heads() * dim_, net[1]), keys = num_groups() * dim_;
    int64_t of_token = 2 * (width() + mixed_width + keys) + queries + net[0] + net[1] + net[2] + net[3];
    Pieces pieces(threads, kStackSlot, batch * length * of_token * item + 11 * Pieces::kStep);
    auto take = [&](int64_t width) { return pieces.take(dtype, {batch, length, width}, item); };
    Tensor hidden = take(width()), x = in[0], room = take(mixed_width),
           picked[] = {take(width()), take(mixed_width)};
    Tensor heads[] = {take(queries), take(keys), take(keys)};
    Tensor rows[] = {take(net[0]), take(net[1]), take(net[2]), take(net[3])};
    size_t attention = 0, state = call.first_state;
    for (const StackLayer& layer : layers_) {
      bool is_last = &layer == &layers_.back();
      int64_t kept = is_last ? call.kept : length, columns = layer.rest.out.columns;
      Tensor mixed = shaped(room, {batch, layer.net ? length : kept, columns});
      if (layer.net) {
        mix(threads, layer, x, call, rows, &out[state], mixed);
        state += num_states;
      } else {
        std::vector<Tensor> stored;
        for (size_t part = 0; part < parts; ++part)
          stored.push_back(out[1 + part * num_attention() + attention]);
        attend(threads, layer, x, in, call, kept, heads, stored, mixed);
        ++attention;
      }
      if (!is_last)
        finish(threads, layer, x, mixed, hidden);
      else if (out[0].size() > 0)
        finish_last(threads, layer, x, mixed, call, picked, out[0]);
      x = hidden;
    }
  }

 private:
  const Heads& heads() const { return *layers_[attention_].heads; }
  int64_t query_width() const { return heads().matrices.all[0].first.rows; }

  /// Attention of x, times its gates if there are any -> `mixed` [B, kept, H * D].
  void attend(ThreadPool& threads, const StackLayer& layer, const Tensor& x, const std::vector<Tensor>& in,
              const StackCall& call, int64_t kept, Tensor* heads, const std::vector<Tensor>& stored,
              const Tensor& mixed) const {
    auto inputs = layer.mixer_in;
    inputs[0] = x, inputs[2] = in[1], inputs[3] = in[2];
    noted("qkv_rope", layer.heads->matrices.cost(call.batch * call.length, bytes_per(x.dtype)),
          [&] { layer.heads->compute(threads, inputs, call.first, kept, heads); });
    int64_t wide = query_width() / num_heads();  // of a head: a query, and perhaps its gate
    Tensor q = shaped(heads[0], {call.batch, kept, num_heads(), wide}), gate = as_rows(q);
    Tensor k = shaped(heads[1], {call.batch, call.length, num_groups(), dim_}), v = k;
    v.data = heads[2].data, q.shape[3] = dim_;
    call.attend(threads, heads_first(q), heads_first(k), heads_first(v), stored,
                shaped(mixed, {call.batch, kept, num_heads(), dim_}));
    if (!layer.heads->has_gate || mixed.size() == 0) return;
    gate.data = static_cast<char*>(gate.data) + dim_ * bytes_per(x.dtype), gate.shape[1] = dim_;
    Tensor flat = shaped(mixed, {gate.shape[0], dim_});
    noted("sigmoid_gate", {3.0 * mixed.size() * bytes_per(x.dtype), 0},
          [&] { table_->sigmoid_gate(threads, flat, gate, flat); });
  }

  /// A gated delta net of x -> `mixed` [B, L, Hv * Dv]; `rows` is room for its inputs.
  void mix(ThreadPool& threads, const StackLayer& layer, const Tensor& x, const StackCall& call, Tensor* rows,
           const Tensor* states, const Tensor& mixed) const {
    Tensor flat = as_rows(x), normed = shaped({nullptr, x.dtype}, {flat.shape[0], flat.shape[1]});
    int64_t count = flat.shape[0], item = bytes_per(x.dtype);
    for (int i = 0; i < 4; ++i) rows[i] = shaped(rows[i], {count, call.sizes->widths()[i]});
    noted("linear", layer.net->matrices.cost(count, item), [&] {
      normed.data = threads.scratch(0, kBindingSlot, flat.size() * item);
      table_->rms_norm(threads, flat, {}, layer.mixer_in[1], layer.net->eps, {}, normed);
      auto products = layer.net->matrices.products(normed, layer.mixer_in, {rows, rows + 4});
      table_->linear(threads, normed, products.data(), 4);
    });
    noted("gated delta", call.sizes->cost(count, call.starts.size() - 1, item), [&] {
      run_delta(table_, threads, *call.sizes, layer.net->net_eps, call.starts, rows, &layer.mixer_in[2],
                states, states, shaped(mixed, {count, mixed.shape[2]}));
    });
  }

  void finish(ThreadPool& threads, const StackLayer& layer, const Tensor& x, const Tensor& mixed,
              const Tensor& out) const {
    auto inputs = layer.rest_in;
    Tensor rows = as_rows(out);
    inputs[0] = x, inputs[1] = shaped(mixed, {rows.shape[0], layer.rest.out.columns});
    noted("attn_out_mlp", layer.rest.cost(rows.shape[0], bytes_per(x.dtype)),
          [&] { layer.rest.compute(threads, inputs, out); });
  }

  /// The same for those tokens of x and of `mixed` that go on, which are copied to `picked` first.
  void finish_last(ThreadPool& threads, const StackLayer& layer, const Tensor& x, const Tensor& mixed,
                   const StackCall& call, Tensor* picked, const Tensor& out) const {
    if (call.kept == call.length && !call.rows) return finish(threads, layer, x, mixed, out);
    int64_t count = (call.rows ? call.rows->size() : call.batch) * call.kept, item = bytes_per(x.dtype);
    const int64_t strides[] = {call.length, mixed.shape[1]};  // tokens of a row of the batch
    Tensor from[] = {as_rows(x), as_rows(mixed)};
    for (int part = 0; part < 2; ++part) {
      picked[part] = shaped(picked[part], {count, from[part].shape[1]});
      for (int64_t i = 0; i < count; ++i) {
        int64_t number = i / call.kept, row = (call.rows ? (*call.rows)[number] : number) + 1;
        row = row * strides[part] - call.kept + i % call.kept;
        std::memcpy(rows_of(picked[part], i, 1).data, rows_of(from[part], row, 1).data,
                    from[part].shape[1] * item);
      }
    }
    finish(threads, layer, picked[0], picked[1], out);
  }

  const Kernels* table_;
  int64_t dim_, num_nets_ = 0, net_ = 0, attention_ = -1;  // the first layer of each kind
  std::vector<StackLayer> layers_;
  std::vector<Array> held_;  // the arrays whose tensors the layers have
};

}  // namespace tiny_llm
