// A mixture of experts: which ones each token uses, and the sum of their outputs.
//
// The uses of an expert are neighbours, so its matrices are read once. What a token gets does not depend on
// its company: a product's row has the same bits in any batch, and its uses are added in the token's order.
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "tiles.h"

namespace tiny_llm::TINY_ISA {

void linear(ThreadPool& threads, const Tensor& x, const Product* products, int count);
void swiglu(ThreadPool& threads, const Tensor& gate, const Tensor& up, const Tensor& out);

void route(ThreadPool& threads, const Tensor& scores, int64_t per_token, bool is_normed, uint32_t* experts,
           float* shares) {
  int64_t count = scores.shape[1], padded = rounded_up(count, kWidth);
  each_row(threads, scores.shape[0], (8 + per_token) * count, [&](int id, int64_t row) {
    float *line = buffer<float>(threads, id, kValues, padded), *of_row = shares + row * per_token;
    widen(scores.data, scores.dtype, row * scores.stride[0], count, padded, line);
    float largest = *std::max_element(line, line + count);
    for (int64_t i = 0; i < padded; i += kWidth) store(line + i, exp(load(line + i) - set(largest)));
    std::fill(line + count, line + padded, 0.0f);
    Vec sums{};
    for (int64_t i = 0; i < padded; i += kWidth) sums += load(line + i);
    for (int64_t i = 0; i < padded; i += kWidth) store(line + i, load(line + i) / set(sum(sums)));
    float total = 0;
    for (int64_t k = 0; k < per_token; ++k) {
      float* best = std::max_element(line, line + count);
      total += of_row[k] = *best;
      experts[row * per_token + k] = static_cast<uint32_t>(best - line);
      *best = -1.0f;
    }
    for (int64_t k = 0; is_normed && k < per_token; ++k) of_row[k] /= total;
  });
}

namespace {

/// Of a number of x.
int64_t bytes_of(const Tensor& x) { return x.dtype == DType::f32 ? 4 : 2; }

/// `count` rows of x from `first` on.
Tensor part_of(Tensor x, int64_t first, int64_t count) {
  x.data = static_cast<char*>(x.data) + first * x.stride[0] * bytes_of(x);
  x.shape[0] = count;
  return x;
}

/// Number n of the matrices that lie one behind the other.
Matrix matrix_of(Matrix stack, int64_t n) {
  int64_t rows = stack.in_blocks ? rounded_up(stack.rows, kBlockPadding) : stack.rows;
  int64_t item = stack.dtype == DType::f32 ? 4 : 2, size = n * rows * stack.columns;
  auto behind = [](const void* data, int64_t bytes) { return static_cast<const char*>(data) + bytes; };
  stack.data = behind(stack.data, stack.bits > 0 ? size * stack.bits / 8 : size * item);
  if (stack.bits == 0) return stack;
  stack.scales = behind(stack.scales, size / stack.group_size * item);
  stack.biases = behind(stack.biases, size / stack.group_size * item);
  return stack;
}

/// The uses of some tokens in the order of their experts. Use t * K + k is token t's k-th.
struct Uses {
  int32_t *starts, *place;  // of expert n: starts[n] to starts[n + 1] - 1; where each use went

  Uses(ThreadPool& threads, const uint32_t* experts, int64_t count, int64_t num_experts)
      : starts(buffer<int32_t>(threads, 0, kUsePlaces, count + num_experts + 2)),
        place(starts + num_experts + 2) {
    std::fill_n(starts, num_experts + 2, 0);
    // An array's numbers are known only now: one that is no expert counts as the last.
    auto expert = [&](int64_t use) { return std::min<int64_t>(experts[use], num_experts - 1); };
    for (int64_t use = 0; use < count; ++use) ++starts[expert(use) + 2];
    for (int64_t n = 2; n < num_experts + 2; ++n) starts[n] += starts[n - 1];
    for (int64_t use = 0; use < count; ++use) place[use] = starts[expert(use) + 1]++;
  }
};

/// Multiplies the uses of each expert in x by its matrix of each stack, into outs.
void multiply_uses(ThreadPool& threads, const Uses& uses, int64_t num_experts, const Tensor& x,
                   std::initializer_list<std::pair<const Matrix*, Tensor>> stacks) {
  std::vector<Product> products;
  for (auto& [stack, out] : stacks)
    for (int64_t n = 0; n < num_experts; ++n) {
      int64_t first = uses.starts[n], count = uses.starts[n + 1] - first;
      if (count == 0) continue;
      products.push_back(
          {.matrix = matrix_of(*stack, n), .bias = {}, .out = part_of(out, first, count), .first = first});
    }
  linear(threads, x, products.data(), static_cast<int>(products.size()));
}

/// Adds `count` numbers times `share` to a line.
template <class T>
void add_share(const T* from, float share, int64_t count, float* line) {
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) store(line + i, fma(set(share), load(from + i), load(line + i)));
  if (i < count) store(line + i, fma(set(share), load_part(from + i, count - i), load(line + i)));
}

/// The rows of x that each use takes, where it went.
void gather(ThreadPool& threads, const Tensor& x, const Uses& uses, int64_t per_token, const Tensor& out) {
  int64_t item = bytes_of(x), bytes = x.shape[1] * item;
  each_row(threads, out.shape[0], x.shape[1], [&](int, int64_t use) {
    const char* from = static_cast<const char*>(x.data) + use / per_token * x.stride[0] * item;
    std::memcpy(static_cast<char*>(out.data) + uses.place[use] * bytes, from, bytes);
  });
}

/// The rows of each token's uses, times their shares; and what is `added`, see `expert_mlp`.
void add_up(ThreadPool& threads, const Tensor& rows, const Uses& uses, const Chosen& chosen,
            const Tensor* added, int num_added, const Tensor& out) {
  int64_t width = out.shape[1], padded = rounded_up(width, kWidth);
  each_row(threads, out.shape[0], chosen.per_token * width, [&](int id, int64_t token) {
    float* line = buffer<float>(threads, id, kValues, padded);
    std::fill_n(line, padded, 0.0f);
    visit(out.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      for (int64_t use = token * chosen.per_token; use < (token + 1) * chosen.per_token; ++use)
        add_share(static_cast<T*>(rows.data) + uses.place[use] * width, chosen.shares[use], width, line);
      T* to = static_cast<T*>(out.data) + token * out.stride[0];
      narrow(line, width, to);
      for (int i = 0; i < num_added; ++i) {
        widen(to, width, padded, line);
        add_share(static_cast<T*>(added[i].data) + token * added[i].stride[0], 1.0f, width, line);
        narrow(line, width, to);
      }
    });
  });
}

/// The same as `expert_mlp`, in one piece.
void mlp_of(ThreadPool& threads, const Tensor& x, const Experts& experts, const Chosen& chosen,
            const Tensor* added, int num_added, const Tensor& out) {
  int64_t width = x.shape[1], inner = experts.gate.rows, count = x.shape[0] * chosen.per_token;
  Uses uses(threads, chosen.experts, count, experts.count);
  auto* room = buffer<char>(threads, 0, kUses, count * (width + 2 * inner) * bytes_of(x));
  auto piece = [&](int64_t columns) {
    Tensor t{room, x.dtype, 2, {count, columns}, {columns, 1}};
    room += count * columns * bytes_of(x);
    return t;
  };
  Tensor rows = piece(width), gated = piece(inner), raised = piece(inner);
  gather(threads, x, uses, chosen.per_token, rows);
  multiply_uses(threads, uses, experts.count, rows, {{&experts.gate, gated}, {&experts.up, raised}});
  swiglu(threads, gated, raised, gated);
  multiply_uses(threads, uses, experts.count, gated, {{&experts.down, rows}});
  add_up(threads, rows, uses, chosen, added, num_added, out);
}

}  // namespace

void expert_mlp(ThreadPool& threads, const Tensor& x, const Experts& experts, const Chosen& chosen,
                const Tensor* added, int num_added, const Tensor& out) {
  constexpr int64_t kTokens = 512;  // whose uses have room at a time
  for (int64_t first = 0; first < x.shape[0]; first += kTokens) {
    int64_t count = std::min(kTokens, x.shape[0] - first), uses = first * chosen.per_token;
    Tensor also[2];
    for (int i = 0; i < num_added; ++i) also[i] = part_of(added[i], first, count);
    mlp_of(threads, part_of(x, first, count), experts,
           {chosen.experts + uses, chosen.shares + uses, chosen.per_token}, also, num_added,
           part_of(out, first, count));
  }
}

}  // namespace tiny_llm::TINY_ISA
