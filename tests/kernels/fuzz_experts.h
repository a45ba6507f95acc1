// A router and its experts: the choice against the definition, the outputs against one expert at a time.
#pragma once

#include "fuzz_linear.h"

namespace fuzz {

inline void route(ThreadPool& threads) {
  DType dtype = any_dtype();
  int64_t T = whole(1, 40), N = whole(1, one_in(2) ? 9 : 300), K = whole(1, std::min<int64_t>(N, 10));
  Array scores = filled(dtype, {T, N}, one_of({0.1, 4.0, 40.0}), false);
  Array experts = empty(DType::u32, {T, K}), shares = empty(DType::f32, {T, K});
  bool is_normed = one_in(2);
  judge.begin("route", dtype);
  auto* ids = static_cast<uint32_t*>(experts.t.data);
  kernels.route(threads, scores.t, K, is_normed, ids, static_cast<float*>(shares.t.data));
  for (int64_t t = 0; t < T; ++t, ids += K) {
    double largest = -INFINITY, all = 0, chosen = 0;
    for (int64_t n = 0; n < N; ++n) largest = std::max(largest, scores(t, n));
    for (int64_t n = 0; n < N; ++n) all += std::exp(scores(t, n) - largest);
    for (int64_t k = 0; k < K; ++k) chosen += std::exp(scores(t, ids[k]) - largest);
    for (int64_t k = 0; k < K; ++k) {
      double want = std::exp(scores(t, ids[k]) - largest) / (is_normed ? chosen : all);
      judge.check(shares(t, k), want, 4 * std::fabs(want) + 0x1p-100, "of a share");
      // Scores that float32's powers may not tell apart come in any order, equal ones in theirs. Below the
      // last power that is not 0 all are equal.
      double mine = scores(t, ids[k]), near = dtype == DType::f32 ? 1e-6 : 0.0;
      int64_t before = 0, not_behind = 0;
      for (int64_t n = 0; n < N; ++n) {
        bool is_first = scores(t, n) == mine && n < ids[k];
        before += scores(t, n) > mine + near || is_first;
        not_behind += scores(t, n) >= mine - near && (near > 0 || scores(t, n) > mine || is_first);
      }
      bool is_right = mine - largest < -80 || (before <= k && k <= not_behind);
      judge.equal(is_right, true, "of an expert's place");
    }
  }
}

/// The same matrices, one behind the other.
inline Matrix stacked(const std::vector<AnyMatrix>& parts, bool in_blocks, Memory* room) {
  Matrix all = in_blocks ? parts[0].in_blocks : parts[0].m;
  int64_t rows = all.in_blocks ? (all.rows + 63) / 64 * 64 : all.rows, size = rows * all.columns;
  int64_t item = bytes_of(all.dtype), groups = all.bits ? size / all.group_size * item : 0;
  int64_t bytes[] = {all.bits ? size * all.bits / 8 : size * item, groups, groups};
  const void* Matrix::* fields[] = {&Matrix::data, &Matrix::scales, &Matrix::biases};
  for (int i = 0; i < (all.bits ? 3 : 1); ++i) {
    room[i] = exactly(bytes[i] * parts.size());
    for (size_t n = 0; n < parts.size(); ++n)
      std::memcpy(static_cast<char*>(room[i].get()) + n * bytes[i],
                  (in_blocks ? parts[n].in_blocks : parts[n].m).*fields[i], bytes[i]);
    all.*fields[i] = room[i].get();
  }
  return all;
}

inline void expert_mlp(ThreadPool& threads) {
  DType dtype = any_dtype(), stored = any_dtype();
  int bits = one_of({0, 4, 8}), group = one_of({32, 64}), unit = bits ? group : 64;
  int64_t N = whole(1, 12), K = whole(1, std::min<int64_t>(N, 4)), E = unit * whole(1, 3);
  int64_t I = unit * whole(1, 3), T = one_in(9) ? whole(510, 530) : whole(1, 40);
  std::vector<AnyMatrix> parts[3];
  Memory room[3][3];
  Matrix stacks[3];
  int activation_bits = bits && one_in(2) ? 8 : 16;
  for (int i = 0; i < 3; ++i) {
    for (int64_t n = 0; n < N; ++n)
      parts[i].emplace_back(i == 2 ? E : I, i == 2 ? I : E, bits, group, stored, 0.1);
    stacks[i] = stacked(parts[i], one_in(2), room[i]);
    stacks[i].activation_bits = activation_bits;
  }
  Array x = filled(dtype, {T, E}, 1.0, false), out = empty(dtype, {T, E}), added[2];
  for (Array& a : added) a = filled(dtype, {T, E}, 1.0, false);
  Array shares = filled(DType::f32, {T, K}, 1.0), experts = empty(DType::u32, {T, K});
  auto* ids = static_cast<uint32_t*>(experts.t.data);
  for (int64_t use = 0; use < T * K; ++use) ids[use] = uint32_t(whole(0, N - 1));
  Tensor also[] = {added[0].t, added[1].t};
  int num_added = int(whole(0, 2));
  judge.begin("expert_mlp", dtype);
  kernels.expert_mlp(threads, x.t, {stacks[0], stacks[1], stacks[2], N},
                     {ids, static_cast<float*>(shares.t.data), K}, also, num_added, out.t);
  Array gated = empty(dtype, {1, I}), raised = empty(dtype, {1, I}), own = empty(dtype, {1, E});
  for (int tries = 0; tries < 8; ++tries) {
    int64_t t = whole(0, T - 1);
    std::vector<float> lines[2] = {std::vector<float>(E, 0.0f), std::vector<float>(E, 0.0f)};
    Tensor row = x.t;
    row.data = x.at(t), row.shape[0] = 1;
    for (int64_t k = 0; k < K; ++k) {
      Product products[3];
      const Array* outs[] = {&gated, &raised, &own};
      for (int i = 0; i < 3; ++i) {
        products[i] = {parts[i][ids[t * K + k]].m, {}, outs[i]->t};
        products[i].matrix.activation_bits = activation_bits;
      }
      kernels.linear(threads, row, products, 2);
      kernels.swiglu(threads, gated.t, raised.t, gated.t);
      kernels.linear(threads, gated.t, products + 2, 1);
      for (int64_t e = 0; e < E; ++e) {
        float share = float(shares(t, k)), number = float(own(0, e));
        volatile float product = share * number;  // without a fused instruction there are two roundings
        lines[0][e] = std::fma(share, number, lines[0][e]), lines[1][e] += product;
      }
    }
    for (int64_t e = 0; e < E; ++e) {
      double want[2];
      for (int way = 0; way < 2; ++way) {
        char rounded[4];
        encode(rounded, dtype, lines[way][e]);
        for (int i = 0; i < num_added; ++i)
          encode(rounded, dtype, float(decode(rounded, dtype)) + float(added[i](t, e)));
        want[way] = decode(rounded, dtype);
      }
      judge.equal(out(t, e), out(t, e) == want[1] ? want[1] : want[0], "of a token's experts");
    }
  }
}

}  // namespace fuzz
