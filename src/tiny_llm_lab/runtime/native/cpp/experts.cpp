// A mixture of experts: which ones each token uses, and the sum of their outputs.
//
// The uses of an expert are neighbours, so its matrices are read once. What a token gets does not depend on
// its company: a product's row has the same bits in any batch, and its uses are added in the token's order.
#include <algorithm>
#include <cstring>
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
      Tensor part = out;
      part.data = static_cast<char*>(out.data) + first * out.stride[0] * (out.dtype == DType::f32 ? 4 : 2);
      part.shape[0] = count;
      products.push_back({.matrix = matrix_of(*stack, n), .bias = {}, .out = part, .first = first});
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

/// The same as `expert_mlp`, of tokens `first` to `first + count - 1`.
void mlp_of(ThreadPool& threads, const Tensor& x, int64_t first, int64_t count, const Experts& experts,
            const Chosen& chosen, const Tensor& out) {
  int64_t width = x.shape[1], inner = experts.gate.rows, per_token = chosen.per_token, num = count * per_token;
  int64_t item = x.dtype == DType::f32 ? 4 : 2;
  Uses uses(threads, chosen.experts + first * per_token, num, experts.count);
  auto* room = buffer<char>(threads, 0, kUses, num * (width + 2 * inner) * item);
  auto piece = [&](int64_t columns) {
    Tensor t{room, x.dtype, 2, {num, columns}, {columns, 1}};
    room += num * columns * item;
    return t;
  };
  Tensor rows = piece(width), gated = piece(inner), raised = piece(inner);
  each_row(threads, num, width, [&](int, int64_t use) {
    const char* from = static_cast<const char*>(x.data) + (first + use / per_token) * x.stride[0] * item;
    std::memcpy(static_cast<char*>(rows.data) + uses.place[use] * width * item, from, width * item);
  });
  multiply_uses(threads, uses, experts.count, rows, {{&experts.gate, gated}, {&experts.up, raised}});
  swiglu(threads, gated, raised, gated);
  multiply_uses(threads, uses, experts.count, gated, {{&experts.down, rows}});
  each_row(threads, count, per_token * width, [&](int id, int64_t token) {
    float* line = buffer<float>(threads, id, kValues, rounded_up(width, kWidth));
    std::fill_n(line, rounded_up(width, kWidth), 0.0f);
    for (int64_t use = token * per_token; use < (token + 1) * per_token; ++use)
      visit(x.dtype, [&](auto* type) {
        const auto* from = static_cast<decltype(type)>(rows.data) + uses.place[use] * width;
        add_share(from, chosen.shares[first * per_token + use], width, line);
      });
    narrow(line, width, out, (first + token) * out.stride[0]);
  });
}

}  // namespace

void expert_mlp(ThreadPool& threads, const Tensor& x, const Experts& experts, const Chosen& chosen,
                const Tensor& out) {
  constexpr int64_t kTokens = 512;  // whose uses have room at a time
  for (int64_t first = 0; first < x.shape[0]; first += kTokens)
    mlp_of(threads, x, first, std::min(kTokens, x.shape[0] - first), experts, chosen, out);
}

}  // namespace tiny_llm::TINY_ISA
