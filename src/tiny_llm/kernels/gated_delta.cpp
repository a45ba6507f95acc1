// The gated delta net (Yang et al. 2024, arXiv 2412.06464): convolution, delta rule and gated norm, token by
// token.
//
// Every sum has one order, whatever the chunk that a token comes in and whatever is computed with it. So an
// answer does not depend on where its prompt was cut.
#include <algorithm>
#include <cmath>

#include "delta_rule.h"

namespace tiny_llm::TINY_ISA {

constexpr int64_t kTokens = 16;  // of a block: their rows stay in the first cache, as a tile does

/// Floats of one thread, handed out piece by piece.
struct Arena {
  float* next;
  float* take(int64_t count) { return std::exchange(next, next + rounded_up(count, 16)); }
};

/// Neighbouring channels of the convolution: what it remembers, and the rows of a block.
struct Channels {
  int64_t first, count, padded;
  float* weight;  // [K, padded]
  float* window;  // [K - 1 + kTokens, padded]: the inputs before a block, then the block's
  float* rows;    // [kTokens, padded]: results

  Channels(const DeltaNet& net, int64_t first, int64_t count, Arena& room)
      : first(first), count(count), padded(rounded_up(count, kWidth)) {
    weight = room.take(net.taps() * padded);
    window = room.take((net.taps() - 1 + kTokens) * padded);
    rows = room.take(kTokens * padded);
    for (int64_t j = 0; j < net.taps(); ++j)
      widen(net.conv.data, net.conv.dtype, j * net.conv.stride[0] + first, count, padded,
            weight + j * padded);
  }

  /// Read the inputs before the first block.
  void begin(const DeltaNet& net, const Tensor& tail) {
    for (int64_t j = 0; j < net.taps() - 1; ++j)
      widen(tail.data, tail.dtype, j * tail.stride[0] + first, count, padded, window + j * padded);
  }

  /// silu(conv) of `length` tokens from row `row` of x on.
  void convolve(const DeltaNet& net, const Tensor& x, int64_t row, int64_t length) {
    int64_t taps = net.taps();
    for (int64_t t = 0; t < length; ++t)
      widen(x.data, x.dtype, (row + t) * x.stride[0] + first, count, padded,
            window + (taps - 1 + t) * padded);
    for (int64_t t = 0; t < length; ++t)
      for (int64_t i = 0; i < padded; i += kWidth) {
        Vec total{};
        for (int64_t j = 0; j < taps; ++j)
          total = fma(load(weight + j * padded + i), load(window + (t + j) * padded + i), total);
        store(rows + t * padded + i, total / (set(1.0f) + exp(-total)));
      }
    std::memmove(window, window + length * padded, (taps - 1) * padded * sizeof(float));
  }

  void keep(const DeltaNet& net, const Tensor& tail) const {
    for (int64_t j = 0; j < net.taps() - 1; ++j)
      narrow(window + j * padded, count, tail, j * tail.stride[0] + first);
  }
};

inline float number(const Tensor& x, int64_t at) {
  float line[kWidth];
  widen(x.data, x.dtype, at, 1, kWidth, line);
  return line[0];
}

/// g = exp(-exp(A_log) softplus(a + dt_bias)) and beta = sigmoid(b) of a value head's tokens.
inline void gates(const DeltaNet& net, const DeltaInputs& x, int64_t row, int64_t length, int64_t head,
                  float* decay, float* beta) {
  float rate = std::exp(number(net.a_log, head)), bias = number(net.dt_bias, head);
  for (int64_t t = 0; t < length; ++t) {
    float a = number(x.a, (row + t) * x.a.stride[0] + head) + bias;
    float softplus = a > 20.0f ? a : std::log1p(std::exp(a));
    decay[t] = std::exp(-rate * softplus);
    beta[t] = 1.0f / (1.0f + std::exp(-number(x.b, (row + t) * x.b.stride[0] + head)));
  }
}

/// out = rmsnorm(o; weight) silu(z) for a value head's tokens.
inline void gated_norm(const DeltaNet& net, const DeltaInputs& x, int64_t row, int64_t length, int64_t head,
                       const float* values, int64_t stride, const float* weight, float* line,
                       const Tensor& out) {
  int64_t padded = rounded_up(net.value_dim, kWidth);
  for (int64_t t = 0; t < length; ++t) {
    const float* o = values + t * stride;
    float inverse = 1.0f / std::sqrt(dot(o, o, padded) / static_cast<float>(net.value_dim) + net.eps);
    widen(x.z.data, x.z.dtype, (row + t) * x.z.stride[0] + head * net.value_dim, net.value_dim, padded, line);
    for (int64_t i = 0; i < padded; i += kWidth) {
      Vec z = load(line + i);
      store(line + i, load(o + i) * set(inverse) * load(weight + i) * (z / (set(1.0f) + exp(-z))));
    }
    narrow(line, net.value_dim, out, (row + t) * out.stride[0] + head * net.value_dim);
  }
}

/// A state [Dk, Dv] into tiles [Dv / kColumns, Dk, kColumns], or back.
template <bool kBack>
inline void move_state(const DeltaNet& net, float* state, float* tiles) {
  for (int64_t first = 0; first < net.value_dim; first += kColumns)
    for (int64_t i = 0; i < net.key_dim; ++i, tiles += kColumns) {
      int64_t count = std::min<int64_t>(kColumns, net.value_dim - first);
      float* row = state + i * net.value_dim + first;
      std::memcpy(kBack ? row : tiles, kBack ? tiles : row, count * sizeof(float));
      if (!kBack) std::fill(tiles + count, tiles + kColumns, 0.0f);
    }
}

/// A request's tokens for one key head and the value heads that share it.
struct KeyHead {
  const DeltaNet& net;
  const DeltaStates& states;
  int64_t request, head, shared, numbers;  // numbers: of a state
  float *before, *after;                   // the states of the value heads
  int64_t wide, tiles;                     // from one row of values to the next, and floats of a state
  bool is_in_place;  // a token alone takes its tiles out of the state: copies would cost as much as it does
  Arena room;
  Channels q, k, v;
  float *matrices, *values, *weight, *line, *products, *decay, *beta;

  /// Floats that the head needs: of three groups of channels, of states, of a block.
  static int64_t size(const DeltaNet& net, int64_t shared, int64_t wide) {
    int64_t channels = 2 * rounded_up(net.key_dim, kWidth) + rounded_up(shared * net.value_dim, kWidth);
    int64_t pieces = 16 * 16;  // what rounding up the pieces takes at most
    return channels * (2 * net.taps() + 2 * kTokens) + shared * wide * net.key_dim + (kTokens + 2) * wide +
           3 * kTokens + pieces;
  }

  KeyHead(ThreadPool& threads, int id, const DeltaNet& net, const DeltaStates& states, int64_t request,
          int64_t head)
      : net(net),
        states(states),
        request(request),
        head(head),
        shared(net.value_heads / net.key_heads),
        numbers(net.key_dim * net.value_dim),
        before(states.before[request] + head * shared * numbers),
        after(states.matrices[request] + head * shared * numbers),
        wide(rounded_up(net.value_dim, kColumns)),
        tiles(wide * net.key_dim),
        is_in_place(states.starts[request + 1] - states.starts[request] == 1 && wide == net.value_dim &&
                    before == after),
        room{buffer<float>(threads, id, kValues, size(net, shared, wide))},
        q(net, head * net.key_dim, net.key_dim, room),
        k(net, (net.key_heads + head) * net.key_dim, net.key_dim, room),
        v(net, 2 * net.key_heads * net.key_dim + head * shared * net.value_dim, shared * net.value_dim,
          room) {
    matrices = room.take(shared * tiles), values = room.take(kTokens * wide), weight = room.take(wide);
    line = room.take(wide), products = room.take(kTokens), decay = room.take(kTokens);
    beta = room.take(kTokens);
    widen(net.norm.data, net.norm.dtype, 0, net.value_dim, wide, weight);
  }

  void begin() {
    for (Channels* each : {&q, &k, &v}) each->begin(net, states.tails[request]);
    for (int64_t h = 0; h < shared && !is_in_place; ++h)
      move_state<false>(net, before + h * numbers, matrices + h * tiles);
  }

  void keep() {
    for (Channels* each : {&q, &k, &v}) each->keep(net, states.tails[request]);
    for (int64_t h = 0; h < shared && !is_in_place; ++h)
      move_state<true>(net, after + h * numbers, matrices + h * tiles);
  }

  /// `length` tokens from row `row` on.
  void run(const DeltaInputs& x, int64_t row, int64_t length, const Tensor& out) {
    for (Channels* each : {&q, &k, &v}) each->convolve(net, x.qkv, row, length);
    for (int64_t t = 0; t < length; ++t) {
      float *query = q.rows + t * q.padded, *key = k.rows + t * k.padded;
      scale(query, 1.0f / std::sqrt((dot(query, query, q.padded) + 1e-6f) * net.key_dim), q.padded);
      scale(key, 1.0f / std::sqrt(dot(key, key, k.padded) + 1e-6f), k.padded);
      products[t] = dot(query, key, k.padded);
    }
    Block block{length, net.key_dim, k.padded, q.rows, k.rows, products};
    for (int64_t h = 0; h < shared; ++h) {
      gates(net, x, row, length, head * shared + h, decay, beta);
      for (int64_t t = 0; t < length; ++t)
        widen(v.rows + t * v.padded + h * net.value_dim, net.value_dim, wide, values + t * wide);
      for (int64_t column = 0; column < wide; column += kColumns) {
        float* tile =
            is_in_place ? after + h * numbers + column : matrices + h * tiles + column * net.key_dim;
        delta_rule(block, decay, beta, tile, is_in_place ? wide : kColumns, values + column, wide);
      }
      gated_norm(net, x, row, length, head * shared + h, values, wide, weight, line, out);
    }
  }
};

void gated_delta(ThreadPool& threads, const DeltaNet& net, const DeltaInputs& x, const DeltaStates& states,
                 const Tensor& out) {
  threads.each(states.count * net.key_heads, [&](int id, int64_t item) {
    int64_t request = item / net.key_heads, row = states.starts[request], end = states.starts[request + 1];
    KeyHead head(threads, id, net, states, request, item % net.key_heads);
    head.begin();
    for (; row < end; row += kTokens) head.run(x, row, std::min(kTokens, end - row), out);
    head.keep();
  });
}

}  // namespace tiny_llm::TINY_ISA
