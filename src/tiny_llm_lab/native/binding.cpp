// The kernels of one package as Python functions on mx.array. Shapes: the course's legend.
#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "operator.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tiny_llm {
namespace {

using Array = mx::array;

void require(bool holds, const std::string& otherwise) {
  if (!holds) throw std::invalid_argument(otherwise);
}

/// Leading dimensions as one: [M, K]. Rows must be evenly spaced, which `evenly_spaced` sees to.
Tensor as_rows(const Tensor& t) {
  Tensor rows{t.data, t.dtype, 2, {1, t.shape[t.ndim - 1]}, {t.shape[t.ndim - 1], 1}};
  for (int i = 0; i < t.ndim - 1; ++i) rows.shape[0] *= t.shape[i];
  for (int i = 0; i < t.ndim - 1; ++i)
    if (t.shape[i] != 1) rows.stride[0] = t.stride[i];  // the innermost one that counts
  return rows;
}

/// The same memory as a contiguous array of another shape.
Tensor shaped(const Tensor& t, std::initializer_list<int64_t> shape) {
  Tensor out{t.data, t.dtype, static_cast<int>(shape.size())};
  std::copy(shape.begin(), shape.end(), out.shape);
  for (int64_t i = out.ndim - 1, step = 1; i >= 0; step *= out.shape[i--]) out.stride[i] = step;
  return out;
}

bool is_one_piece(const Tensor& t) {
  int64_t step = 1;
  for (int i = t.ndim - 1; i >= 0; step *= t.shape[i--])
    if (t.shape[i] != 1 && t.stride[i] != step) return false;
  return true;
}

/// Pools of int8 have scales, one for every row; others have none.
void require_scales(const Array& k, const Array& v, const std::optional<std::pair<Array, Array>>& kv_scales) {
  require(k.dtype() == v.dtype() && kv_scales.has_value() == (k.dtype() == mx::int8), "pools of int8 come with scales, and only they");
  mx::Shape rows(k.shape().begin(), k.shape().end() - 1);
  bool fits = !kv_scales || (kv_scales->first.shape() == rows && kv_scales->second.shape() == rows &&
                             kv_scales->first.dtype() == mx::float32 && kv_scales->second.dtype() == mx::float32);
  require(fits, "scales must be float32 [blocks, G, block size], one for every row of their pool");
}

/// At most one leading dimension may be longer than 1, unless the array is contiguous, which only a copy ensures.
Array evenly_spaced(const Array& a) {
  int longer = 0;
  for (int i = 0; i < static_cast<int>(a.ndim()) - 1; ++i) longer += a.shape(i) != 1;
  return longer <= 1 ? a : mx::contiguous(a, false, mx::Device::cpu);
}

/// Matrices and tables are read as one piece of memory. Those of a model are one, and evaluated: they stay as they are.
Array one_piece(const Array& a) {
  bool is_one = a.status() != Array::Status::unscheduled && a.flags().row_contiguous;
  return is_one ? a : mx::contiguous(a, false, mx::Device::cpu);
}

double bytes_of(const Array& a) { return static_cast<double>(a.nbytes()); }

/// A weight as Python holds it: an array [N, K], or an object with weight, scales, biases, group_size and bits.
/// Its arrays become inputs of an operator; what the operator keeps is their layout.
struct Weight {
  int rows, columns, group_size = 0, bits = 0;
  size_t first;  // its arrays' place among the inputs
  double bytes = 0;

  Weight(nb::handle object, std::vector<Array>& inputs) : first(inputs.size()) {
    if (nb::isinstance<Array>(object)) {
      inputs.push_back(one_piece(nb::cast<Array>(object)));
    } else {
      for (const char* part : {"weight", "scales", "biases"})
        inputs.push_back(one_piece(nb::cast<Array>(object.attr(part))));
      require(inputs[first + 1].dtype() == inputs[first + 2].dtype(), "scales and biases must be of one dtype");
      group_size = nb::cast<int>(object.attr("group_size"));
      bits = nb::cast<int>(object.attr("bits"));
    }
    rows = inputs[first].shape(0);
    columns = bits ? inputs[first].shape(1) * 32 / bits : inputs[first].shape(1);
    for (size_t i = first; i < inputs.size(); ++i) bytes += bytes_of(inputs[i]);
  }

  void require_fit(const Array& x) const {
    require(columns == x.shape(-1), "x has " + std::to_string(x.shape(-1)) + " columns but the matrix takes " +
                                        std::to_string(columns));
  }

  void require_like(const Weight& other) const {
    bool is_alike = bits == other.bits && group_size == other.group_size;
    require(is_alike, "matrices multiplied together must be packed alike");
  }

  Matrix matrix(const std::vector<Tensor>& in) const {
    Matrix m{in[first].data, nullptr, nullptr, in[first].dtype, rows, columns, group_size, bits};
    if (bits) m.scales = in[first + 1].data, m.biases = in[first + 2].data, m.dtype = in[first + 1].dtype;
    return m;
  }
};

// A buffer of the team that no kernel uses.
constexpr int kBindingSlot = 15;

std::vector<int32_t> per_row(const std::variant<int, std::vector<int>>& value, int rows) {
  if (auto* one = std::get_if<int>(&value)) return std::vector<int32_t>(rows, *one);
  auto& many = std::get<std::vector<int>>(value);
  require(static_cast<int>(many.size()) == rows, std::to_string(many.size()) + " numbers for " + std::to_string(rows) + " rows");
  return {many.begin(), many.end()};
}

/// The numbers of an int32 array, each below `count`.
std::vector<int32_t> numbers(const Array& a, const char* what, int64_t count) {
  require(a.dtype() == mx::int32, std::string(what) + " must be int32");
  Array whole = one_piece(a);
  whole.eval();
  std::vector<int32_t> list(whole.data<int32_t>(), whole.data<int32_t>() + whole.size());
  for (int32_t n : list)
    require(n >= 0 && n < count, std::string(what) + " lie in 0 to " + std::to_string(count - 1) + ", not " + std::to_string(n));
  return list;
}

/// Matrices that are multiplied with the same x, each with a bias or none.
struct Matrices {
  std::vector<std::pair<Weight, size_t>> all;  // with the place of its bias among the inputs, 0 for none
  Cost cost;

  Matrices(const Array& x, nb::list weights, nb::list biases, std::vector<Array>& inputs) : cost{bytes_of(x), 0} {
    double rows = static_cast<double>(x.size()) / x.shape(-1);
    for (size_t i = 0; i < weights.size(); ++i) {
      Weight w(weights[i], inputs);
      w.require_fit(x);
      if (i > 0) w.require_like(all[0].first);
      bool has_bias = i < biases.size() && !biases[i].is_none();
      all.emplace_back(w, has_bias ? inputs.size() : 0);
      if (has_bias) inputs.push_back(nb::cast<Array>(biases[i]));
      cost.bytes += w.bytes + rows * w.rows * x.itemsize();
      cost.flops += 2 * rows * w.rows * w.columns;
    }
  }

  /// The products of x [M, K] into contiguous outputs.
  std::vector<Product> products(const Tensor& x, const std::vector<Tensor>& in, const std::vector<Tensor>& out) const {
    std::vector<Product> list;
    for (size_t i = 0; i < all.size(); ++i) {
      auto& [w, bias] = all[i];
      list.push_back({w.matrix(in), bias ? in[bias] : Tensor{}, shaped(out[i], {x.shape[0], w.rows}), {}});
    }
    return list;
  }
};

/// The tables of rotations [P, D / 2] as inputs, and a position for each row of x [B, L, ...].
std::vector<int32_t> positions(const Array& x, const std::variant<int, std::vector<int>>& offsets, const Array& cos,
                               const Array& sin, std::vector<Array>& inputs) {
  require(cos.ndim() == 2 && cos.dtype() == mx::float32 && sin.dtype() == mx::float32 && sin.shape() == cos.shape(),
          "the tables must be float32, and alike");
  auto rows = per_row(offsets, x.shape(0));
  for (int offset : rows)
    require(offset >= 0 && offset + x.shape(1) <= cos.shape(0),
            "positions must lie in 0 to " + std::to_string(cos.shape(0) - 1));
  inputs.insert(inputs.end(), {one_piece(cos), one_piece(sin)});
  return rows;
}

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

  /// Queries, keys and values [B, heads, L, D] of x [B, L, E]: projected, normalised if there are norms, rotated.
  std::vector<Array> heads(const Array& x, nb::list weights, nb::list biases, const std::optional<Array>& query_norm,
                           const std::optional<Array>& key_norm, float eps, const Array& cos, const Array& sin,
                           bool traditional, const std::variant<int, std::vector<int>>& offsets) const {
    int batch = x.shape(0), length = x.shape(1), dim = 2 * cos.shape(1);
    std::vector<Array> inputs{evenly_spaced(x)};
    auto rows = positions(x, offsets, cos, sin, inputs);
    if (query_norm) inputs.insert(inputs.end(), {*query_norm, *key_norm});
    Matrices matrices(x, weights, biases, inputs);
    std::vector<mx::Shape> shapes;
    for (auto& [w, bias] : matrices.all) {
      // One token a row lies in memory alike in both orders of the dimensions.
      int count = w.rows / dim;
      shapes.push_back(length == 1 ? mx::Shape{batch, count, 1, dim} : mx::Shape{batch, length, count, dim});
    }
    auto body = [table = table_, matrices, rows, eps, traditional, length, has_norms = query_norm.has_value()](
                    Team& team, const auto& in, const auto& out) {
      Tensor x = as_rows(in[0]);
      auto products = matrices.products(x, in, out);
      table->linear(team, x, products.data(), static_cast<int>(products.size()));
      for (size_t i = 0; i < 2; ++i) {
        int64_t dim = out[i].shape[3], count = matrices.all[i].first.rows / dim;
        Tensor t = shaped(out[i], {x.shape[0] / length, length, count, dim});
        table->rope(team, t, has_norms ? in[3 + i] : Tensor{}, eps, in[1], in[2], rows.data(), traditional, t);
      }
    };
    std::vector<mx::Dtype> dtypes(shapes.size(), x.dtype());
    auto out = make_operator("heads", std::move(inputs), std::move(shapes), std::move(dtypes), body, matrices.cost);
    if (length > 1)
      for (auto& part : out) part = mx::transpose(part, {0, 2, 1, 3}, mx::Device::cpu);
    return out;
  }

  /// residual + (silu(x gate^T) * (x up^T)) down^T.
  Array mlp(const Array& x, nb::handle gate, nb::handle up, nb::handle down, const Array& residual) const {
    std::vector<Array> inputs{evenly_spaced(x), evenly_spaced(residual)};
    Weight g(gate, inputs), u(up, inputs), d(down, inputs);
    require(g.columns == x.shape(-1) && d.columns == g.rows && u.rows == g.rows && residual.shape(-1) == d.rows,
            "the matrices do not fit x, or each other");
    u.require_like(g);
    double rows = static_cast<double>(x.size()) / x.shape(-1);
    Cost cost{2 * bytes_of(x) + g.bytes + u.bytes + d.bytes, 6.0 * rows * g.rows * g.columns};
    auto body = [table = table_, g, u, d](Team& team, const auto& in, const auto& out) {
      Tensor x = as_rows(in[0]);
      int64_t width = g.rows, bytes = x.shape[0] * width * (x.dtype == DType::f32 ? 4 : 2);
      auto* scratch = static_cast<char*>(team.scratch(0, kBindingSlot, 2 * bytes));
      Tensor gated = shaped({scratch, x.dtype}, {x.shape[0], width}), raised = gated;
      raised.data = scratch + bytes;
      Product first[] = {{g.matrix(in), {}, gated, {}}, {u.matrix(in), {}, raised, {}}};
      table->linear(team, x, first, 2);
      table->swiglu(team, gated, raised, gated);
      Product last{d.matrix(in), {}, as_rows(out[0]), as_rows(in[1])};
      table->linear(team, gated, &last, 1);
    };
    mx::Shape shape = residual.shape();
    return make_operator("mlp", std::move(inputs), {shape}, {x.dtype()}, body, cost)[0];
  }

  Array quantized_matmul_step(int step, const Array& x, nb::handle weight) const {
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

  /// [B, H, L, D], or [B, L, H * D] if `flat`.
  Array attention(const Array& q, const Array& k, const Array& v, const std::variant<int, std::vector<int>>& lengths,
                  bool causal, float scale, bool flat) const {
    require(q.ndim() == 4 && k.ndim() == 4 && v.shape() == k.shape(), "query, key and value must have 4 dimensions, key and value the same");
    require(q.shape(0) == k.shape(0) && q.shape(3) == k.shape(3) && k.shape(1) > 0 && q.shape(1) % k.shape(1) == 0,
            std::to_string(k.shape(1)) + " kv heads do not divide " + std::to_string(q.shape(1)) + " query heads");
    auto rows = per_row(lengths, q.shape(0));
    double stored = 0;
    for (int n : rows) {
      require(n >= q.shape(2) && n <= k.shape(2), "a row's length must lie between its new tokens and what is stored");
      stored += n;
    }
    Cost cost{2 * stored * k.shape(1) * k.shape(3) * k.itemsize(), 4.0 * stored * q.shape(1) * q.shape(2) * q.shape(3)};
    auto body = [table = table_, rows, causal, scale](Team& team, const auto& in, const auto& out) {
      int64_t heads = in[0].shape[1], length = in[0].shape[2], dim = in[0].shape[3];
      Tensor t = shaped(out[0], {in[0].shape[0], length, heads, dim});
      table->attention(team, in[0], in[1], in[2], {in[0].shape[0], rows.data()}, causal, scale, t);
    };
    mx::Shape shape{q.shape(0), q.shape(2), q.shape(1), q.shape(3)};
    if (flat) shape = {q.shape(0), q.shape(2), q.shape(1) * q.shape(3)};
    Array out = make_operator("attention", {q, k, v}, {shape}, {q.dtype()}, body, cost)[0];
    return flat ? out : mx::transpose(out, {0, 2, 1, 3}, mx::Device::cpu);
  }

  /// [T, 1, H * D] of packed queries [T, H, 1, D] over pools [blocks, G, block size, D]; those of int8 come with the
  /// scales of keys and values [blocks, G, block size].
  Array paged_attention(const Array& q, const Array& k, const Array& v, const std::vector<int>& starts,
                        const std::vector<int>& lengths, const Array& tables, float scale,
                        const std::optional<std::pair<Array, Array>>& kv_scales) const {
    require(q.ndim() == 4 && q.shape(2) == 1 && k.ndim() == 4 && v.shape() == k.shape() && q.shape(3) == k.shape(3) &&
                k.shape(1) > 0 && q.shape(1) % k.shape(1) == 0,
            "queries must be [T, H, 1, D] and both pools [blocks, G, block size, D], with G a divisor of H");
    std::vector<Array> inputs{q, k, v};
    require_scales(k, v, kv_scales);
    if (kv_scales) inputs.insert(inputs.end(), {kv_scales->first, kv_scales->second});
    auto blocks = numbers(tables, "blocks", k.shape(0));
    int64_t width = tables.ndim() == 2 ? tables.shape(1) : 0;
    require(starts.size() == lengths.size() + 1 && starts.front() == 0 && starts.back() == q.shape(0) &&
                tables.ndim() == 2 && static_cast<size_t>(tables.shape(0)) == lengths.size(),
            "starts must lead from 0 to the number of rows, with a length and a table for each request");
    Cost cost;
    for (size_t r = 0; r < lengths.size(); ++r) {
      int64_t rows = starts[r + 1] - starts[r];
      require(rows >= 0 && lengths[r] >= rows && lengths[r] <= width * k.shape(2),
              "a request's length must lie between its rows and what its blocks hold");
      cost.bytes += 2.0 * lengths[r] * k.shape(1) * (k.shape(3) * k.itemsize() + (kv_scales ? 4 : 0));
      cost.flops += 4.0 * lengths[r] * q.shape(1) * rows * q.shape(3);
    }
    auto body = [table = table_, starts, lengths, blocks = std::move(blocks), width, scale](Team& team, const auto& in, const auto& out) {
      // Tokens one behind the other in one row: [1, H, T, D].
      Tensor q = in[0], o = shaped(out[0], {1, q.shape[0], q.shape[1], q.shape[3]});
      std::swap(q.shape[0], q.shape[2]), std::swap(q.stride[0], q.stride[2]);
      Requests requests{static_cast<int64_t>(lengths.size()), lengths.data(), starts.data(), blocks.data(), width};
      Tensor key = in[1], value = in[2];
      if (in.size() > 3) {
        for (auto& t : {in[1], in[2], in[3], in[4]})
          require(is_one_piece(t), "pools of 8 bits and their scales must lie in one piece");
        key.scales = static_cast<const float*>(in[3].data), value.scales = static_cast<const float*>(in[4].data);
      }
      table->attention(team, q, key, value, requests, true, scale, o);
    };
    mx::Shape shape{q.shape(0), 1, q.shape(1) * q.shape(3)};
    return make_operator("paged attention", std::move(inputs), {shape}, {q.dtype()}, body, cost)[0];
  }

  /// (x, norm(x)), or (x + delta, norm(x + delta)).
  std::pair<Array, Array> rms_norm(const Array& x, const Array& weight, float eps, const std::optional<Array>& delta) const {
    std::vector<Array> inputs{evenly_spaced(x), weight};
    if (delta) {
      require(delta->shape() == x.shape() && delta->dtype() == x.dtype(), "x and delta must be alike");
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

  Array rope(const Array& x, const std::variant<int, std::vector<int>>& offsets, const Array& cos, const Array& sin, bool traditional,
             const std::optional<Array>& weight, float eps) const {
    require(x.ndim() == 4 && cos.ndim() == 2 && 2 * cos.shape(1) == x.shape(3), "the tables do not fit the heads");
    std::vector<Array> inputs{x};
    auto rows = positions(x, offsets, cos, sin, inputs);
    if (weight) inputs.push_back(*weight);
    auto body = [table = table_, rows, traditional, eps](Team& team, const auto& in, const auto& out) {
      table->rope(team, in[0], in.size() > 3 ? in[3] : Tensor{}, eps, in[1], in[2], rows.data(), traditional, out[0]);
    };
    return make_operator("rope", std::move(inputs), {x.shape()}, {x.dtype()}, body, {2 * bytes_of(x), 0})[0];
  }

  /// `stored` [R, G, S, D] with `added` [B, G, L, D] written into its first B rows from offsets[b] on.
  Array append(const Array& stored, const Array& added, const std::variant<int, std::vector<int>>& offsets) const {
    require(stored.ndim() == 4 && added.ndim() == 4 && added.shape(0) <= stored.shape(0) &&
                added.shape(1) == stored.shape(1) && added.shape(3) == stored.shape(3) && added.dtype() == stored.dtype(),
            "what is added does not fit what is stored");
    auto rows = per_row(offsets, added.shape(0));
    for (int offset : rows)
      require(offset >= 0 && offset + added.shape(2) <= stored.shape(2), "what is added does not fit into the room");
    auto body = [rows](Team&, const auto& in, const auto& out) {
      const Tensor &from = in[1], &to = out[0];
      int64_t size = from.dtype == DType::f32 ? 4 : 2, line = from.shape[3] * size;
      for (int64_t b = 0; b < from.shape[0]; ++b)
        for (int64_t g = 0; g < from.shape[1]; ++g)
          for (int64_t l = 0; l < from.shape[2]; ++l)
            std::memcpy(static_cast<char*>(to.data) + (b * to.stride[0] + g * to.stride[1] + (rows[b] + l) * to.stride[2]) * size,
                        static_cast<const char*>(from.data) + (b * from.stride[0] + g * from.stride[1] + l * from.stride[2]) * size,
                        line);
    };
    return make_operator("append", {stored, added}, {stored.shape()}, {stored.dtype()}, body, {2 * bytes_of(added), 0}, true)[0];
  }

  /// The pool `stored` [blocks, G, block size, D] with row t of `added` [T, G, 1, D] written to slots[t], which is
  /// block * block size + place; or a pool of the scales of such rows, both without D.
  Array append_rows(const Array& stored, const Array& added, const Array& slots) const {
    size_t ndim = stored.ndim();
    require((ndim == 3 || ndim == 4) && added.ndim() == ndim && added.shape(1) == stored.shape(1) && added.shape(2) == 1 &&
                (ndim == 3 || added.shape(3) == stored.shape(3)) && added.dtype() == stored.dtype(),
            "what is added does not fit what is stored");
    auto where = numbers(slots, "slots", static_cast<int64_t>(stored.shape(0)) * stored.shape(2));
    require(static_cast<int>(where.size()) == added.shape(0), std::to_string(where.size()) + " slots for " + std::to_string(added.shape(0)) + " rows");
    int64_t size = stored.itemsize(), line = size * (ndim == 4 ? stored.shape(3) : 1);
    auto body = [where = std::move(where), size, line](Team&, const auto& in, const auto& out) {
      const Tensor &from = in[1], &to = out[0];
      for (int64_t t = 0; t < from.shape[0]; ++t)
        for (int64_t g = 0; g < from.shape[1]; ++g)
          std::memcpy(static_cast<char*>(to.data) + (where[t] / to.shape[2] * to.stride[0] + g * to.stride[1] + where[t] % to.shape[2] * to.stride[2]) * size,
                      static_cast<const char*>(from.data) + (t * from.stride[0] + g * from.stride[1]) * size, line);
    };
    return make_operator("append", {stored, added}, {stored.shape()}, {stored.dtype()}, body, {2 * bytes_of(added), 0}, true)[0];
  }

  /// x [..., D] as int8 [..., D], and the scales [...] of its rows.
  std::vector<Array> quantize_rows(const Array& x) const {
    require(x.ndim() >= 1 && x.shape(-1) > 0, "a row has at least one number");
    mx::Shape rows(x.shape().begin(), x.shape().end() - 1);
    auto body = [table = table_](Team& team, const auto& in, const auto& out) {
      table->quantize_rows(team, as_rows(in[0]), static_cast<int8_t*>(out[0].data), static_cast<float*>(out[1].data));
    };
    return make_operator("quantize_rows", {evenly_spaced(x)}, {x.shape(), rows}, {mx::int8, mx::float32}, body, {2 * bytes_of(x), 0});
  }

  Array swiglu(const Array& gate, const Array& up) const {
    require(gate.shape() == up.shape() && gate.dtype() == up.dtype(), "gate and up must be alike");
    auto body = [table = table_](Team& team, const auto& in, const auto& out) {
      table->swiglu(team, as_rows(in[0]), as_rows(in[1]), as_rows(out[0]));
    };
    return make_operator("swiglu", {evenly_spaced(gate), evenly_spaced(up)}, {gate.shape()}, {gate.dtype()}, body, {3 * bytes_of(gate), 0})[0];
  }

  Array embedding(const Array& tokens, nb::handle weight) const {
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
    mx::Shape shape(x.shape().begin(), x.shape().end() - 1);
    auto body = [table = table_](Team& team, const auto& in, const auto& out) {
      table->argmax(team, as_rows(in[0]), static_cast<uint32_t*>(out[0].data));
    };
    return make_operator("argmax", {evenly_spaced(x)}, {shape}, {mx::uint32}, body, {bytes_of(x), 0})[0];
  }

  Array top_k(const Array& x, int k) const {
    require(k >= 1 && k <= x.shape(-1), "k must be 1 to " + std::to_string(x.shape(-1)));
    mx::Shape shape = x.shape();
    shape.back() = k;
    auto body = [table = table_, k](Team& team, const auto& in, const auto& out) {
      table->top_k(team, as_rows(in[0]), k, static_cast<float*>(out[0].data));
    };
    return make_operator("top_k", {evenly_spaced(x)}, {shape}, {mx::float32}, body, {bytes_of(x), 0})[0];
  }

 private:
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
      .def("heads", &KernelSet::heads, "x"_a, "weights"_a, "biases"_a, "query_norm"_a.none(), "key_norm"_a.none(), "eps"_a,
           "cos"_a, "sin"_a, "traditional"_a, "offsets"_a)
      .def("mlp", &KernelSet::mlp, "x"_a, "gate"_a, "up"_a, "down"_a, "residual"_a)
      .def("rms_norm", &KernelSet::rms_norm, "x"_a, "weight"_a, "eps"_a, "delta"_a = nb::none())
      .def("rope", &KernelSet::rope, "x"_a, "offsets"_a, "cos"_a, "sin"_a, "traditional"_a = false, "weight"_a = nb::none(), "eps"_a = 0.0f)
      .def("append", &KernelSet::append, "stored"_a, "added"_a, "offsets"_a)
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
