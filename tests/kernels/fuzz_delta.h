// The gated delta net over packed rows: against the equations in double, and in two parts against the whole.
#pragma once

#include "fuzz.h"

namespace fuzz {

/// What is remembered of one request, in buffers of its exact size.
struct DeltaMemory {
  Array tail, matrices;

  DeltaMemory(const DeltaMemory& from)
      : tail(empty(from.tail.t.dtype, {from.tail.t.shape[0], from.tail.t.shape[1]})),
        matrices(empty(DType::f32,
                       {from.matrices.t.shape[0], from.matrices.t.shape[1], from.matrices.t.shape[2]})) {
    each(tail.t, [&](auto... at) { encode(tail.at(at...), tail.t.dtype, from.tail(at...)); });
    each(matrices.t, [&](auto... at) { encode(matrices.at(at...), DType::f32, from.matrices(at...)); });
  }
  DeltaMemory(const DeltaNet& net, DType dtype)
      : tail(filled(dtype, {net.taps() - 1, net.conv.shape[1]})),
        matrices(filled(DType::f32, {net.value_heads, net.key_dim, net.value_dim})) {}

  void run(ThreadPool& threads, const DeltaNet& net, DeltaInputs x, int64_t first, int64_t count,
           const Array& out) {
    for (Tensor* part : {&x.qkv, &x.z, &x.a, &x.b}) {
      part->data = static_cast<char*>(part->data) + first * part->stride[0] * bytes_of(part->dtype);
      part->shape[0] = count;
    }
    int32_t starts[] = {0, int32_t(count)};
    float* data = static_cast<float*>(matrices.t.data);
    Tensor rows = out.t;
    rows.data = out.at(first), rows.shape[0] = count;
    kernels.gated_delta(threads, net, x, {1, starts, &tail.t, &data, &data}, rows);
  }
};

inline double silu(double x) { return x / (1 + std::exp(-x)); }

/// One value head of one request in double: its rows' outputs before the norm, and its state.
struct DeltaHead {
  std::vector<std::vector<double>> out;
  std::vector<double> state;
  double largest = 0;  // of its state and values, at any time

  DeltaHead(const DeltaNet& net, const Array& conv, const Array* x, const Array& a_log, const Array& dt_bias,
            const DeltaMemory& before, int64_t h, int64_t first, int64_t end) {
    int64_t DK = net.key_dim, DV = net.value_dim, K = net.taps(), HK = net.key_heads;
    int64_t key_head = h / (net.value_heads / HK);
    for (int64_t i = 0; i < DK * DV; ++i) state.push_back(before.matrices(h, i / DV, i % DV));
    for (int64_t t = first; t < end; ++t) {
      auto mixed = [&](int64_t channel, int64_t count) {
        std::vector<double> row;
        for (int64_t c = channel; c < channel + count; ++c) {
          double total = 0;
          for (int64_t j = 0; j < K; ++j) {
            int64_t at = t - first + j - (K - 1);  // before 0: in the tail
            total += conv(j, c) * (at < 0 ? before.tail(K - 1 + at, c) : x[0](first + at, c));
          }
          row.push_back(silu(total));
        }
        return row;
      };
      auto q = mixed(key_head * DK, DK), k = mixed((HK + key_head) * DK, DK);
      auto v = mixed(2 * HK * DK + h * DV, DV);
      for (auto* row : {&q, &k}) {
        double square = 1e-6;
        for (double number : *row) square += number * number;
        for (double& number : *row) number /= std::sqrt(square * (row == &q ? double(DK) : 1.0));
      }
      double a = x[2](t, h) + dt_bias(h), beta = 1 / (1 + std::exp(-x[3](t, h)));
      double decay = std::exp(-std::exp(a_log(h)) * std::log1p(std::exp(a)));
      for (double& number : state) number *= decay;
      out.emplace_back(DV);
      for (int64_t c = 0; c < DV; ++c) {
        double missing = v[c];
        for (int64_t d = 0; d < DK; ++d) missing -= state[d * DV + c] * k[d];
        for (int64_t d = 0; d < DK; ++d) {
          state[d * DV + c] += k[d] * beta * missing;
          out.back()[c] += state[d * DV + c] * q[d];
          largest = std::max({largest, std::fabs(state[d * DV + c]), std::fabs(v[c])});
        }
      }
    }
  }
};

/// Two parts of a request, one after the other, have the bits of the whole among others.
inline void check_parts(ThreadPool& threads, const DeltaNet& net, const DeltaInputs& x,
                        const DeltaMemory& before, const DeltaMemory& after, int64_t first, int64_t end,
                        const Array& among) {
  DeltaMemory parts(before);
  Array out = empty(among.t.dtype, {among.t.shape[0], among.t.shape[1]});
  int64_t middle = whole(first, end);
  if (middle > first) parts.run(threads, net, x, first, middle - first, out);
  if (middle < end) parts.run(threads, net, x, middle, end - middle, out);
  for (int64_t t = first; t < end; ++t)
    for (int64_t i = 0; i < among.t.shape[1]; ++i) judge.equal(out(t, i), among(t, i), "of two parts");
  each(after.matrices.t, [&](int64_t h, int64_t d, int64_t c, int64_t) {
    judge.equal(parts.matrices(h, d, c), after.matrices(h, d, c), "of a state after two parts");
  });
  each(after.tail.t, [&](int64_t j, int64_t c, int64_t, int64_t) {
    judge.equal(parts.tail(j, c), after.tail(j, c), "of conv inputs after two parts");
  });
}

inline void gated_delta(ThreadPool& threads) {
  DType dtype = any_dtype();
  int64_t R = whole(1, 3), HK = whole(1, 3), HV = HK * whole(1, 3), K = whole(1, 5);
  int64_t DK = one_in(6) ? 128 : whole(1, 40), DV = one_in(6) ? 128 : whole(1, 70);
  int64_t C = 2 * HK * DK + HV * DV;
  std::vector<int32_t> starts{0};
  for (int64_t r = 0; r < R; ++r) starts.push_back(starts[r] + int32_t(one_in(3) ? 1 : whole(1, 40)));
  int64_t T = starts[R];
  Array conv = filled(any_dtype(), {K, C}), norm = filled(any_dtype(), {DV});
  Array a_log = filled(any_dtype(), {HV}, 2.0), dt_bias = filled(any_dtype(), {HV}, 4.0);
  Array x[] = {filled(dtype, {T, C}, 1.0, false), filled(dtype, {T, HV * DV}, 4.0, false),
               filled(dtype, {T, HV}, 4.0, false), filled(dtype, {T, HV}, 4.0, false)};
  Array out = empty(dtype, {T, HV * DV});
  DeltaNet net{conv.t, a_log.t, dt_bias.t, norm.t, 1e-6f, HK, DK, HV, DV};
  DeltaInputs inputs{x[0].t, x[1].t, x[2].t, x[3].t};
  std::vector<DeltaMemory> before, after;
  before.reserve(R), after.reserve(R);
  std::vector<Tensor> tails;
  std::vector<float*> matrices, sources;
  DType kept = one_of({DType::f32, dtype});
  for (int64_t r = 0; r < R; ++r) {
    before.emplace_back(net, kept), after.emplace_back(before[r]);
    tails.push_back(after[r].tail.t);
    matrices.push_back(static_cast<float*>(after[r].matrices.t.data));
    bool is_kept = one_in(2);  // by a draft: new ones go into memory that holds anything
    sources.push_back(is_kept ? static_cast<float*>(before[r].matrices.t.data) : matrices[r]);
    if (is_kept) std::fill_n(matrices[r], after[r].matrices.t.size(), NAN);
  }
  judge.begin("gated_delta", dtype);
  kernels.gated_delta(threads, net, inputs, {R, starts.data(), tails.data(), matrices.data(), sources.data()},
                      out.t);
  for (int64_t r = 0; r < R; ++r) {
    int64_t first = starts[r], end = starts[r + 1];
    for (int64_t h = 0; h < HV; ++h) {
      DeltaHead want(net, conv, x, a_log, dt_bias, before[r], h, first, end);
      for (int64_t t = first; t < end; ++t) {
        auto& row = want.out[t - first];
        double square = 0;
        for (double number : row) square += number * number;
        double inverse = 1 / std::sqrt(square / double(DV) + 1e-6);
        for (int64_t c = 0; c < DV; ++c) {
          double factor = inverse * norm(c) * silu(x[1](t, h * DV + c));
          judge.check(out(t, h * DV + c), row[c] * factor, want.largest * std::fabs(factor),
                      "of a delta net");
        }
      }
      for (int64_t i = 0; i < DK * DV; ++i)
        judge.check(after[r].matrices(h, i / DV, i % DV), want.state[i], 2 * want.largest, "of a state");
    }
    for (int64_t j = 0; j < K - 1; ++j)
      for (int64_t c = 0; c < C; ++c) {
        int64_t at = end - first + j - (K - 1);
        judge.equal(after[r].tail(j, c), at < 0 ? before[r].tail(K - 1 + at, c) : x[0](first + at, c),
                    "of conv inputs");
      }
    if (one_in(2)) check_parts(threads, net, inputs, before[r], after[r], first, end, out);
  }
}

}  // namespace fuzz
