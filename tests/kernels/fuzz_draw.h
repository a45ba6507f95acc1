// Draws and scores of rows of logits, with settings in buffers of exactly their size: against plain loops in
// double.
#pragma once

#include "fuzz.h"

namespace fuzz {

/// Logits with ties and minus infinities.
inline Array logits(DType dtype, int64_t M, int64_t V) {
  Array x = filled(dtype, {M, V}, one_of({1.0, 9.0}), false);
  double coarse = one_of({4.0, 1e9});
  each(x.t, [&](auto... index) {
    double number = one_in(9) ? -INFINITY : std::round(decode(x.at(index...), dtype) * coarse) / coarse;
    encode(x.at(index...), dtype, number);
  });
  return x;
}

/// `count` numbers of `make` in memory of their size; `at` is where a `DrawRows` finds them.
template <class T, class Make>
Memory numbers(const T*& at, int64_t count, const Make& make) {
  Memory memory = exactly(count * sizeof(T));
  T* data = static_cast<T*>(memory.get());
  for (int64_t i = 0; i < count; ++i) data[i] = make(i);
  at = data;
  return memory;
}

/// Any settings of M rows. A row's edits are of neighbouring tokens, from any token on, in any order.
struct AnyRows {
  DrawRows rows;
  std::vector<Memory> memory;

  AnyRows(int64_t M, int64_t V) {
    std::vector<int32_t> starts{0}, edited;
    for (int64_t m = 0; m < M; ++m) {
      int64_t count = one_in(2) ? 0 : whole(1, std::min<int64_t>(V, 20)), first = whole(0, V - count);
      for (int64_t i = 0; i < count; ++i) edited.push_back(int32_t(first + i));
      std::shuffle(edited.end() - count, edited.end(), random_bits);
      starts.push_back(int32_t(edited.size()));
    }
    int64_t num_masks = whole(0, 2);
    keep(rows.settings, M, [&](int64_t) {
      return DrawRows::Settings{one_of({0.0f, 1.0f, 0.7f, 3.0f, 1e-6f, 1e6f}),
                                one_of({1.0f, 1.0f, 0.5f, 0.9f, 0.05f}), one_of({0.0f, 0.0f, 0.05f, 0.5f})};
    });
    keep(rows.top_k, M, [&](int64_t) { return one_of({0, 0, 1, int32_t(V), int32_t(whole(1, V))}); });
    keep(rows.words, 2 * M, [&](int64_t) { return uint32_t(random_bits()); });
    keep(rows.edit_starts, M + 1, [&](int64_t m) { return starts[m]; });
    keep(rows.edited, edited.size(), [&](int64_t e) { return uint32_t(edited[e]); });
    keep(rows.changes, edited.size(), [&](int64_t) {  // exact in float32, in whatever order
      return DrawRows::Change{one_of({0.0f, 2.5f, -3.0f, -1e30f}), one_of({1.0f, 0.5f, 2.0f}),
                              one_of({0.0f, 1.5f})};
    });
    keep(rows.masks, M, [&](int64_t) { return int32_t(whole(-1, num_masks - 1)); });
    bool is_dense = one_in(2);
    keep(rows.allowed, num_masks * ((V + 31) / 32),
         [&](int64_t) { return uint32_t(random_bits()) | (is_dense ? uint32_t(random_bits()) : 0); });
  }

  template <class T, class Make>
  void keep(const T*& at, int64_t count, const Make& make) {
    memory.push_back(numbers(at, count, make));
  }

  /// Row m of x after edits and mask, divided by its temperature.
  std::vector<double> scores(const Array& x, int64_t m) const {
    std::vector<float> line;
    int64_t V = x.t.shape[1];
    for (int64_t v = 0; v < V; ++v) line.push_back(float(x(m, v)));
    for (int32_t e = rows.edit_starts[m]; e < rows.edit_starts[m + 1]; ++e) {
      float& logit = line[rows.edited[e]];
      logit += rows.changes[e].bias;
      logit = (logit > 0 ? logit / rows.changes[e].factor : logit * rows.changes[e].factor) -
              rows.changes[e].loss;
    }
    for (int64_t v = 0; v < V && rows.masks[m] >= 0; ++v)
      if ((rows.allowed[rows.masks[m] * ((V + 31) / 32) + v / 32] >> v % 32 & 1) == 0) line[v] = -INFINITY;
    float temperature = rows.settings[m].temperature;
    for (float& logit : line) logit = temperature > 0 ? logit / temperature : logit;
    return {line.begin(), line.end()};
  }

  /// The Gumbel number of a token.
  double gumbel(int64_t m, uint32_t token) const {
    uint32_t x = token * 0x9E3779B9u + rows.words[2 * m];
    uint32_t factors[] = {0x21F0AAADu, 0x735A2D97u, 0x85EBCA6Bu, 0xC2B2AE35u};
    for (int i = 0; i < 4; ++i) {
      x = (x ^ x >> (i % 2 ? 15 : 16)) * factors[i];
      if (i % 2) x ^= x >> 16;
      if (i == 1) x ^= rows.words[2 * m + 1];
    }
    float number = (float(x >> 1) + 0.5f) * 0x1p-31f;
    return -std::log(-std::log1p(-std::min(double(number), 1 - 0x1p-24)));
  }

  /// What is kept for sure, and what rounding may keep.
  std::pair<double, double> cuts(std::vector<double> falling, int64_t m) const {
    std::sort(falling.rbegin(), falling.rend());
    double peak = falling[0], sure = -1e300, maybe = sure, total = 0, above = 0;
    int64_t k = rows.top_k[m];
    if (k > 0) sure = maybe = falling[std::min<int64_t>(k, int64_t(falling.size())) - 1];
    for (double score : falling) total += score >= sure ? std::exp(score - peak) : 0;
    double share = rows.settings[m].top_p, kept = sure;
    for (size_t i = 0; share < 1 && i < falling.size() && falling[i] >= kept; ++i) {
      if (i == 0 || falling[i] < falling[i - 1]) {  // what is above all equals of this score
        if (i == 0 || above <= (share - 2e-6) * total) sure = falling[i];
        if (above < (share + 2e-6) * total) maybe = falling[i];
      }
      above += std::exp(falling[i] - peak);
    }
    double cut = peak + std::log(double(rows.settings[m].min_p));
    double step = 1e-6 * std::max({std::fabs(peak), std::fabs(cut), 1.0});  // of a float32
    if (rows.settings[m].min_p == 0) return {sure, maybe};
    return {std::min(peak, std::max(sure, cut + step)), std::max(maybe, cut - step)};
  }
};

inline void draw(ThreadPool& threads) {
  DType dtype = any_dtype();
  int64_t M = whole(1, 6), V = one_in(8) ? whole(2000, 9000) : whole(1, 900);
  Array x = logits(dtype, M, V), out = empty(DType::u32, {M});
  AnyRows how(M, V);
  judge.begin("draw", dtype);
  kernels.draw(threads, x.t, how.rows, static_cast<uint32_t*>(out.t.data));
  for (int64_t m = 0; m < M; ++m) {
    std::vector<double> scores = how.scores(x, m);
    uint32_t token = static_cast<uint32_t*>(out.t.data)[m];
    auto best = std::max_element(scores.begin(), scores.end());
    if (token >= V) judge.fail(token, double(V) - 1, "of a drawn token, the largest");
    if (std::isinf(*best)) continue;
    if (how.rows.settings[m].temperature == 0) {
      judge.equal(token, double(best - scores.begin()), "of the likeliest token");
      continue;
    }
    auto [sure, maybe] = how.cuts(scores, m);
    double most = -INFINITY, sum = scores[token] + how.gumbel(m, token);
    for (int64_t v = 0; v < V; ++v)
      if (scores[v] >= sure) most = std::max(most, scores[v] + how.gumbel(m, uint32_t(v)));
    if (scores[token] < maybe) judge.fail(scores[token], maybe, "of a drawn score");
    if (sum < most - 2e-5) judge.fail(sum, most, "of a drawn token's sum");
  }
}

inline void score(ThreadPool& threads) {
  DType dtype = any_dtype();
  int64_t M = whole(1, 6), V = one_in(8) ? whole(2000, 9000) : whole(1, 900);
  int64_t k = one_of<int64_t>({0, 1, V, whole(1, V)});
  Array x = logits(dtype, M, V), chosen = empty(DType::f32, {M}), likely = empty(DType::f32, {M, k});
  const uint32_t* tokens;
  Memory of_tokens = numbers(tokens, M, [&](int64_t) { return uint32_t(whole(0, V - 1)); }),
         top = exactly(4 * M * k);
  auto* found = static_cast<uint32_t*>(top.get());
  judge.begin("score", dtype);
  kernels.score(threads, x.t, tokens, int(k), static_cast<float*>(chosen.t.data), found,
                static_cast<float*>(likely.t.data));
  for (int64_t m = 0; m < M; ++m) {
    std::vector<std::pair<double, int64_t>> falling;
    for (int64_t v = 0; v < V; ++v) falling.emplace_back(-x(m, v), v);
    std::sort(falling.begin(), falling.end());
    double total = 0, peak = -falling[0].first;
    if (std::isinf(peak)) continue;
    for (auto& each : falling) total += std::exp(-each.first - peak);
    auto compare = [&](double got, double logit) {
      double want = logit - peak - std::log(total);
      bool is_right =
          std::isinf(want) ? std::isinf(got) : std::fabs(got - want) <= 1e-5 + 0x1p-22 * std::fabs(want);
      if (!is_right) judge.fail(got, want, "of a logprob");
    };
    compare(chosen(m), x(m, tokens[m]));
    for (int64_t i = 0; i < k; ++i) {
      judge.equal(found[m * k + i], double(falling[i].second), "of the likeliest tokens");
      compare(likely(m, i), -falling[i].first);
    }
  }
}

}  // namespace fuzz
