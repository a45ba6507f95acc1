// A stack of layers as an operator, over rows of storage or over pages.
#pragma once

#include "stack.h"

namespace tiny_llm {

using Stored = std::vector<std::vector<Array>>;  // keys, values, perhaps the scales of both: by layer

inline void require_hidden(const LayerStack& stack, const Array& x) {
  require(x.ndim() == 3 && x.shape(2) == stack.width(), "x must be [B, L, ", stack.width(), "], not ",
          x.shape());
  require_rows(x, "x");
}

/// By layer with a gated delta net, the states of all requests.
using NetStates = std::vector<std::vector<DeltaState>>;

/// What those layers start from, and where each request's rows begin [R + 1].
using StackStates = std::pair<NetStates, std::vector<int>>;

/// What a step gives: x behind the last layer, and the storage and the states as they were given, with the
/// new tokens.
using StackResult = std::tuple<Array, Stored, NetStates>;

/// Let a call have the states that its stack needs, which become inputs and outputs.
inline void add_net_states(const LayerStack& stack, const StackStates& states, int num_rows, StackCall& call,
                           std::vector<Array>& inputs, std::vector<mx::Shape>& shapes,
                           std::vector<mx::Dtype>& dtypes) {
  auto& [layers, starts] = states;
  call.first_state = shapes.size();
  require(static_cast<int64_t>(layers.size()) == stack.num_nets(),
          "every layer with a gated delta net has its own states");
  if (layers.empty()) return;
  require_starts(starts, num_rows);
  call.starts.assign(starts.begin(), starts.end());
  const NetInputs& net = stack.net();
  for (auto& layer : layers) {
    require(layer.size() + 1 == starts.size(), "every request has its state in every layer");
    if (!call.sizes) call.sizes = DeltaSizes(net.widths()[0], layer[0].second);
    require_states(layer, *call.sizes, net.taps);
    add_states(layer, inputs, shapes, dtypes);
  }
  require(call.sizes->widths() == net.widths(), "the states do not fit the layers");
}

/// The storage is written to in its own memory, states in theirs if nothing else refers to it. Where no
/// storage is given, keys and values have new memory of the shape `made`, with any numbers in it.
inline StackResult stack_operator(std::shared_ptr<const LayerStack> stack, const Array& x,
                                  const Offsets& offsets, const Array& cos, const Array& sin,
                                  const Stored& stored, const StackStates& states, int kept,
                                  const std::optional<std::vector<int>>& rows, Attend attend,
                                  const mx::Shape& made = {}) {
  require(kept >= 0 && kept <= x.shape(1), "a stack keeps 0 to L tokens");
  require(2 * cos.shape(1) == stack->dim() || (stack->has_gate() && 2 * cos.shape(1) < stack->dim()),
          "the tables do not fit the heads");  // only gated attention rotates a part of each head
  std::vector<Array> inputs{evenly_spaced(x)};
  StackCall call{x.shape(0), x.shape(1), positions(x, offsets, cos, sin, inputs),
                 kept,       rows,       std::move(attend)};
  if (rows)
    for (int row : *rows) require(row >= 0 && row < x.shape(0), "rows must be 0 to ", x.shape(0) - 1);
  int count = rows ? rows->size() : x.shape(0);
  if (count == 0) call.kept = 0;
  size_t parts = stored.empty() ? 2 : stored.size(), layers = stack->num_attention(), tables = inputs.size();
  std::vector<mx::Shape> shapes{{count, kept, x.shape(2)}};
  std::vector<mx::Dtype> dtypes{x.dtype()};
  for (auto& part : stored) {
    require(part.size() == layers, "every layer with attention has its own storage");
    for (auto& a : part) inputs.push_back(a), shapes.push_back(a.shape()), dtypes.push_back(a.dtype());
  }
  if (stored.empty()) {
    shapes.resize(1 + parts * layers, made);
    dtypes.resize(shapes.size(), x.dtype());
  }
  Memory memory{.in_place = InPlace::always,
                .continued = stored.empty() ? shapes.size() : 1,
                .stored = tables,
                .free_from = inputs.size()};
  add_net_states(*stack, states, x.shape(0) * x.shape(1), call, inputs, shapes, dtypes);
  size_t next_state = call.first_state, num_requests = call.starts.size() - 1;
  auto body = [stack, call = std::move(call)](ThreadPool& threads, const auto& in, const auto& out) {
    stack->compute(threads, in, out, call);
  };
  auto out = make_operator("layers", std::move(inputs), std::move(shapes), std::move(dtypes), body,
                           {.has_parts = true}, memory);
  Stored grown;
  for (size_t part = 0, next = 1; part < parts; ++part, next += layers)
    grown.emplace_back(out.begin() + next, out.begin() + next + layers);
  NetStates after;
  for (; next_state < out.size(); next_state += 2 * num_requests)
    after.push_back(states_of(out, next_state, num_requests));
  return {out[0], std::move(grown), std::move(after)};
}

/// Whether the memory of an array may be written to: it is computed, and no view or operator refers to it.
/// Asked of Python's own array, as a copy of that would be a second reference.
inline bool is_free(nb::handle array) {
  auto& a = nb::cast<Array&>(array);
  return a.is_available() && a.is_donatable() && a.flags().row_contiguous;
}

/// Rows of storage [R, G, room, D], of which row b has its first offsets[b] tokens.
inline Attend attend_to_rows(std::shared_ptr<const LayerStack> stack, const Array& x,
                             const std::vector<int32_t>& offsets, float scale) {
  double sum = 0;
  for (int offset : offsets) sum += offset + x.shape(1);
  int64_t groups = stack->num_groups(), dim = stack->dim();
  Cost cost{2 * sum * groups * dim * x.itemsize(), 4 * sum * stack->num_heads() * x.shape(1) * dim};
  return [stack, place = BehindRows{offsets}, scale, cost, length = x.shape(1), item = x.itemsize()](
             ThreadPool& threads, const Tensor& q, const Tensor& k, const Tensor& v,
             const std::vector<Tensor>& stored, const Tensor& out) {
    noted("append", {4.0 * k.size() * item, 0},
          [&] { store_tokens(k, stored[0], item, place), store_tokens(v, stored[1], item, place); });
    if (out.size() == 0) return;
    std::vector<int32_t> lengths = place.offsets;
    for (auto& tokens : lengths) tokens += length;
    noted("attention", cost, [&] {
      stack->table()->attention(threads, q, stored[0], stored[1], {k.shape[0], lengths.data()}, true, scale,
                                out);
    });
  };
}

/// x [B, L, E] behind tokens that lie in rows of storage [R, G, room, D], which is written to. None where it
/// is not free: MLX would have to copy all of it.
inline std::optional<StackResult> stack_over_rows(std::shared_ptr<const LayerStack> stack, const Array& x,
                                                  const Offsets& offsets, const Array& cos, const Array& sin,
                                                  nb::list lists, float scale, int kept,
                                                  const std::optional<std::vector<int>>& rows,
                                                  const StackStates& states) {
  require_hidden(*stack, x);
  for (nb::handle part : lists)
    for (nb::handle array : nb::cast<nb::list>(part))
      if (!is_free(array)) return {};
  auto stored = nb::cast<Stored>(lists);
  require(stored.size() == 2, "rows have keys and values");
  auto first = per_row(offsets, x.shape(0));
  for (auto& part : stored)
    for (auto& a : part) {
      require(a.ndim() == 4 && a.shape(0) >= x.shape(0) && a.shape(1) == stack->num_groups() &&
                  a.shape(3) == stack->dim() && a.dtype() == x.dtype(),
              "storage of ", a.shape(), " has no rows for x of ", x.shape());
      for (int offset : first)
        require(offset >= 0 && offset <= a.shape(2) - x.shape(1), "a row of storage has room for ",
                a.shape(2), " tokens");
    }
  return stack_operator(stack, x, offsets, cos, sin, stored, states, kept, rows,
                        attend_to_rows(stack, x, first, scale));
}

/// x [B, L, E] without tokens before them, and new storage [B, G, room, D] for them and for more.
inline StackResult stack_over_new_rows(std::shared_ptr<const LayerStack> stack, const Array& x,
                                       const Array& cos, const Array& sin, int room, float scale, int kept,
                                       const std::optional<std::vector<int>>& rows,
                                       const StackStates& states) {
  require_hidden(*stack, x);
  require(room >= x.shape(1), "room for ", room, " of ", x.shape(1), " tokens");
  std::vector<int32_t> first(x.shape(0), 0);
  mx::Shape made{x.shape(0), static_cast<int>(stack->num_groups()), room, static_cast<int>(stack->dim())};
  return stack_operator(stack, x, 0, cos, sin, {}, states, kept, rows, attend_to_rows(stack, x, first, scale),
                        made);
}

/// Store k and v [T, G, 1, D] in the slots of a layer's pools, as integers and their scales if there are any.
inline void store_in_pages(const LayerStack& stack, ThreadPool& threads, const Tensor& k, const Tensor& v,
                           const std::vector<Tensor>& stored, const InSlots& place) {
  int64_t rows = k.shape[0] * k.shape[1], dim = k.shape[3], item = bytes_per(k.dtype);
  for (int part = 0; part < 2; ++part) {
    const Tensor& added = part == 0 ? k : v;
    if (stored.size() == 2) {
      noted("append", {2.0 * rows * dim * item, 0}, [&] { store_tokens(added, stored[part], item, place); });
      continue;
    }
    Pieces pieces(threads, kBindingSlot, rows * (dim + sizeof(float)) + 2 * Pieces::kStep);
    Tensor numbers = pieces.take(DType::i8, {k.shape[0], k.shape[1], 1, dim}, 1);
    Tensor scales = pieces.take(DType::f32, {k.shape[0], k.shape[1], 1}, sizeof(float));
    noted("quantize_rows", {2.0 * rows * dim * item, 0}, [&] {
      stack.table()->quantize_rows(threads, shaped(added, {rows, dim}), static_cast<int8_t*>(numbers.data),
                                   static_cast<float*>(scales.data));
    });
    noted("append", {2.0 * rows * (dim + sizeof(float)), 0}, [&] {
      store_tokens(numbers, stored[part], 1, place);
      store_tokens(scales, stored[2 + part], sizeof(float), place);
    });
  }
}

/// Packed x [T, 1, E] over pools of blocks, those of int8 with the scales of keys and values.
inline StackResult stack_over_pages(std::shared_ptr<const LayerStack> stack, const Array& x,
                                    const Offsets& offsets, const Array& cos, const Array& sin,
                                    const Stored& stored, const Array& slots, const std::vector<int>& starts,
                                    const std::vector<int>& lengths, const Array& tables, float scale,
                                    int kept, const std::optional<std::vector<int>>& rows,
                                    const StackStates& states) {
  require_hidden(*stack, x);
  require(x.shape(1) == 1, "packed x must be [T, 1, E], not ", x.shape());
  require(stored.size() == 2 || stored.size() == 4, "pools are keys and values, or those and their scales");
  for (auto& part : stored)
    for (auto& a : part)
      require(a.shape() == part[0].shape() && a.dtype() == part[0].dtype(), "the pools of the layers differ");
  const Array &keys = stored[0].at(0), &values = stored[1].at(0);
  bool has_scales = stored.size() == 4;
  require(keys.ndim() == 4 && keys.shape() == values.shape() && keys.dtype() == values.dtype() &&
              keys.shape(1) == stack->num_groups() && keys.shape(3) == stack->dim() &&
              (has_scales || keys.dtype() == x.dtype()),
          "pools must be [blocks, G, block size, D], and of x's dtype or int8");
  using Scales = std::pair<Array, Array>;
  require_scales(
      keys, has_scales ? std::optional<Scales>({stored[2].at(0), stored[3].at(0)}) : std::optional<Scales>());
  InSlots place{numbers(slots, "slots", static_cast<int64_t>(keys.shape(0)) * keys.shape(2)), keys.shape(2)};
  require(static_cast<int>(place.slots.size()) == x.shape(0), place.slots.size(), " slots for ", x.shape(0),
          " rows");
  Cost cost = cost_of_pages(x.shape(0), stack->num_heads(), keys, starts, lengths, tables);
  Pages pages{starts, lengths, numbers(tables, "blocks", keys.shape(0)), tables.shape(1)};
  auto attend = [stack, place = std::move(place), pages = std::move(pages), scale, cost](
                    ThreadPool& threads, const Tensor& q, const Tensor& k, const Tensor& v,
                    const std::vector<Tensor>& stored, const Tensor& out) {
    store_in_pages(*stack, threads, k, v, stored, place);
    if (out.size() > 0)
      noted("paged attention", cost,
            [&] { pages.attend(stack->table(), threads, q, stored.data(), stored.size(), scale, out); });
  };
  return stack_operator(stack, x, offsets, cos, sin, stored, states, kept, rows, attend);
}

}  // namespace tiny_llm
