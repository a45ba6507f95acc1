// All layers of a model as one node of the graph: planned, started and ended once a step. What is computed
// are the parts of the operators for one layer, in the same order, so that the results are the same to the
// bit.
#pragma once

#include "append.h"
#include "attention.h"
#include "layer.h"

namespace tiny_llm {

/// One layer, with the tensors of its parts' inputs that no step changes.
struct StackLayer {
  Heads heads;
  OutMlp rest;
  std::vector<Tensor> heads_in, rest_in;
};

/// Tensors in one scratch buffer, one behind the other.
class Pieces {
 public:
  static constexpr int64_t kStep = 64;  // the most that is left free between two

  Pieces(ThreadPool& threads, int slot, int64_t bytes)
      : next_(static_cast<char*>(threads.scratch(0, slot, bytes))) {}

  Tensor take(DType dtype, std::initializer_list<int64_t> shape, int64_t itemsize) {
    Tensor t = shaped({next_, dtype}, shape);
    next_ += (t.size() * itemsize + kStep - 1) / kStep * kStep;
    return t;
  }

 private:
  char* next_;
};

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
};

class LayerStack {
 public:
  /// `layers` are objects with the fields of LayerWeights; heads are `dim` wide.
  LayerStack(const Kernels* table, nb::list layers, int dim, bool traditional) : table_(table), dim_(dim) {
    require(layers.size() > 0, "a stack has one layer or more");
    for (nb::handle layer : layers) add(layer, traditional);
    mx::eval(held_);
    size_t next = 0;
    for (auto& layer : layers_)
      for (auto* inputs : {&layer.heads_in, &layer.rest_in})
        for (auto& tensor : *inputs) tensor = tensor_of(held_[next++]);
  }

  int64_t num_layers() const { return layers_.size(); }
  int64_t width() const { return layers_[0].rest.out.rows; }
  int64_t num_heads() const { return layers_[0].heads.matrices.all[0].first.rows / dim_; }
  int64_t num_groups() const { return layers_[0].heads.matrices.all[1].first.rows / dim_; }
  int64_t dim() const { return dim_; }
  const Kernels* table() const { return table_; }

  /// `in`: x [B, L, E] and the tables; `out`: x behind the last layer, and the storage, `parts` tensors a
  /// layer, those of all layers behind each other.
  void compute(ThreadPool& threads, const std::vector<Tensor>& in, const std::vector<Tensor>& out,
               const StackCall& call) const {
    DType dtype = in[0].dtype;
    int64_t batch = call.batch, length = call.length, item = bytes_per(dtype),
            parts = (out.size() - 1) / num_layers();
    int64_t of_token = 2 * width() + (3 * num_heads() + 2 * num_groups()) * dim_;
    Pieces pieces(threads, kStackSlot, batch * length * of_token * item + 7 * Pieces::kStep);
    auto take = [&](std::initializer_list<int64_t> shape) { return pieces.take(dtype, shape, item); };
    Tensor hidden = take({batch, length, width()}), x = in[0];
    Tensor heads[] = {take({batch, length, num_heads(), dim_}), take({batch, length, num_groups(), dim_}),
                      take({batch, length, num_groups(), dim_})};
    Tensor attended = take({batch, length, num_heads(), dim_});
    Tensor picked[] = {take({batch * length, width()}), take({batch * length, num_heads() * dim_})};
    for (int64_t i = 0; i < num_layers(); ++i) {
      const StackLayer& layer = layers_[i];
      bool is_last = i + 1 == num_layers();
      int64_t kept = is_last ? call.kept : length;
      project(threads, layer, x, in, call, kept, heads);
      heads[0] = shaped(heads[0], {batch, kept, num_heads(), dim_});
      attended = shaped(attended, {batch, kept, num_heads(), dim_});
      std::vector<Tensor> stored;
      for (int64_t part = 0; part < parts; ++part) stored.push_back(out[1 + part * num_layers() + i]);
      call.attend(threads, heads_first(heads[0]), heads_first(heads[1]), heads_first(heads[2]), stored,
                  attended);
      if (!is_last)
        finish(threads, layer, x, attended, hidden);
      else if (out[0].size() > 0)
        finish_last(threads, layer, x, attended, call, picked, out[0]);
      x = hidden;
    }
  }

 private:
  void add(nb::handle layer, bool traditional) {
    auto vector = [&](const char* name) { return array_of(layer.attr(name), name); };
    auto maybe = [&](const char* name) {
      return layer.attr(name).is_none() ? std::optional<Array>() : std::optional<Array>(vector(name));
    };
    Array norm = vector("norm"), mlp_norm = vector("mlp_norm"),
          x = mx::zeros({1, 1, norm.shape(0)}, mx::float32);
    float eps = nb::cast<float>(layer.attr("eps"));
    // What a step brings, x and tables or x and what was attended, has a place among the inputs.
    std::vector<Array> first{norm, norm, norm, norm}, second{norm, norm, mlp_norm};
    auto query_norm = maybe("query_norm"), key_norm = maybe("key_norm");
    add_norms(query_norm, key_norm, dim_, first);
    Heads heads{table_, Matrices(x, layer.attr("qkv"), layer.attr("biases"), first), eps, traditional,
                query_norm.has_value()};
    require_vector(norm, x.shape(2), "the norm's weight");
    require(heads.matrices.all.size() == 3, "a layer has three matrices of heads");
    heads.matrices.require_heads_of(dim_);
    OutMlp rest(table_, x, layer.attr("out"), mlp_norm, eps, layer.attr("gate"), layer.attr("up"),
                layer.attr("down"), second);
    require(rest.out.columns == heads.matrices.all[0].first.rows,
            "the output projection does not fit the heads");
    layers_.push_back({heads, rest, std::vector<Tensor>(first.size()), std::vector<Tensor>(second.size())});
    for (auto* inputs : {&first, &second}) held_.insert(held_.end(), inputs->begin(), inputs->end());
  }

  void project(ThreadPool& threads, const StackLayer& layer, const Tensor& x, const std::vector<Tensor>& in,
               const StackCall& call, int64_t kept, const Tensor* heads) const {
    auto inputs = layer.heads_in;
    inputs[0] = x, inputs[2] = in[1], inputs[3] = in[2];
    noted("qkv_rope", layer.heads.matrices.cost(call.batch * call.length, bytes_per(x.dtype)),
          [&] { layer.heads.compute(threads, inputs, call.first, kept, heads); });
  }

  void finish(ThreadPool& threads, const StackLayer& layer, const Tensor& x, const Tensor& attended,
              const Tensor& out) const {
    auto inputs = layer.rest_in;
    Tensor rows = as_rows(out);
    inputs[0] = x, inputs[1] = shaped(attended, {rows.shape[0], num_heads() * dim_});
    noted("attn_out_mlp", layer.rest.cost(rows.shape[0], bytes_per(x.dtype)),
          [&] { layer.rest.compute(threads, inputs, out); });
  }

  /// The same for those tokens of x and of what was attended that go on, which are copied to `picked` first.
  void finish_last(ThreadPool& threads, const StackLayer& layer, const Tensor& x, const Tensor& attended,
                   const StackCall& call, Tensor* picked, const Tensor& out) const {
    if (call.kept == call.length && !call.rows) return finish(threads, layer, x, attended, out);
    Tensor from[] = {as_rows(x), shaped(attended, {call.batch * call.kept, num_heads() * dim_})};
    int64_t count = (call.rows ? call.rows->size() : call.batch) * call.kept, item = bytes_per(x.dtype);
    for (int part = 0; part < 2; ++part) {
      picked[part] = shaped(picked[part], {count, from[part].shape[1]});
      int64_t stride = part == 0 ? call.length : call.kept;  // tokens of a row of the batch
      for (int64_t i = 0; i < count; ++i) {
        int64_t number = i / call.kept, row = (call.rows ? (*call.rows)[number] : number) * stride + stride -
                                              call.kept + i % call.kept;
        std::memcpy(rows_of(picked[part], i, 1).data, rows_of(from[part], row, 1).data,
                    from[part].shape[1] * item);
      }
    }
    finish(threads, layer, picked[0], picked[1], out);
  }

  const Kernels* table_;
  int64_t dim_;
  std::vector<StackLayer> layers_;
  std::vector<Array> held_;  // the arrays whose tensors the layers have
};

}  // namespace tiny_llm
