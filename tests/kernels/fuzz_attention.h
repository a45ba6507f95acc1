// Attention over rows and over pages, of floats and of 8 bits, and what makes rows of 8 bits.
#pragma once

#include "fuzz.h"

namespace fuzz {

/// What the rounding of weights may add, in units of `check`, to an output that is a mean of values off it by
/// `spread` on average: they are rounded to bfloat16 where such numbers are multiplied in pairs. Those of 8
/// bits are rounded times a scale, and their sum is not: all of a value counts, by up to 2^-8.
inline double narrowing(DType query, DType stored, double spread) {
  bool is_scaled = stored == DType::i8;
  if (query != DType::bf16 || (stored != DType::bf16 && !is_scaled)) return 0.0;
  return spread * (is_scaled ? 0x1.01p-8 : 0x1.01p-9) / 1e-6;
}

/// A token alone has the same bits as in its chunk: token l of row b, which sees `visible` stored ones.
inline void check_alone(ThreadPool& threads, const Array& q, const Array& k, const Array& v,
                        const Array& among, float scale, int64_t b, int64_t l, int32_t visible) {
  Tensor query = q.t, key = k.t, value = v.t;
  query.data = q.at(b, 0, l), key.data = k.at(b), value.data = v.at(b);
  query.shape[0] = query.shape[2] = key.shape[0] = value.shape[0] = 1;
  Array out = empty(among.t.dtype, {1, 1, query.shape[1], query.shape[3]});
  kernels.attention(threads, query, key, value, {1, &visible}, true, scale, out.t);
  each(out.t, [&](int64_t, int64_t, int64_t h, int64_t d) {
    judge.equal(out(0, 0, h, d), among(b, l, h, d), "of a token alone");
  });
}

inline void attention(ThreadPool& threads) {
  DType dtype = any_dtype(), stored = any_dtype();
  int64_t B = whole(1, 3), G = whole(1, 3), H = G * one_of<int64_t>({1, 2, 3, 4, 7, 8, 24});
  int64_t L = one_in(2) ? whole(1, 3) : whole(1, 40), S = L + one_of<int64_t>({0, 1, whole(0, 130)});
  int64_t D = one_of<int64_t>({64, 80, 128, whole(1, 70)});
  bool causal = !one_in(4);
  float scale = 1.0f / std::sqrt(float(D));
  double size = std::ldexp(1.0, int(whole(-4, 3)));
  Array q = filled(dtype, {B, H, L, D}, 1.0, false), out = empty(dtype, {B, L, H, D});
  Array k = filled(stored, {B, G, S, D}, size, false), v = filled(stored, {B, G, S, D}, 1.0, false);
  std::vector<int32_t> lengths;
  for (int64_t b = 0; b < B; ++b) {
    // Repeated rows share their memory, and so the length up to which it means anything.
    bool is_shared = b > 0 && (k.t.stride[0] == 0 || v.t.stride[0] == 0);
    lengths.push_back(is_shared ? lengths[0] : int32_t(whole(L, S)));
  }
  for (Array* a : {&k, &v})
    each(a->t, [&](int64_t b, int64_t g, int64_t s, int64_t d) {
      if (a->t.stride[2] != 0 && s >= lengths[b])
        encode(a->at(b, g, s, d), stored, one_in(2) ? NAN : INFINITY);
    });
  judge.begin("attention", dtype);
  kernels.attention(threads, q.t, k.t, v.t, {B, lengths.data()}, causal, scale, out.t);
  std::vector<double> scores(S), keys(S * D), values(S * D);
  for (int64_t b = 0; b < B; ++b)
    for (int64_t h = 0; h < H; ++h) {
      int64_t g = h / (H / G);
      for (int64_t i = 0; i < S * D; ++i) keys[i] = k(b, g, i / D, i % D), values[i] = v(b, g, i / D, i % D);
      for (int64_t l = 0; l < L; ++l) {
        int64_t visible = causal ? lengths[b] - L + l + 1 : lengths[b];
        double peak = -INFINITY, total = 0;
        for (int64_t s = 0; s < visible; ++s) {
          scores[s] = 0;
          for (int64_t d = 0; d < D; ++d) scores[s] += q(b, h, l, d) * keys[s * D + d] * scale;
          peak = std::max(peak, scores[s]);
        }
        for (int64_t s = 0; s < visible; ++s) total += scores[s] = std::exp(scores[s] - peak);
        for (int64_t d = 0; d < D; ++d) {
          double want = 0;
          for (int64_t s = 0; s < visible; ++s) want += scores[s] / total * values[s * D + d];
          double spread = 0;
          for (int64_t s = 0; s < visible; ++s)
            spread += scores[s] / total * std::fabs(values[s * D + d] - want);
          judge.check(out(b, l, h, d), want, 1 + size + narrowing(dtype, stored, spread), "of attention");
        }
      }
    }
  int64_t b = whole(0, B - 1), l = whole(0, L - 1);
  check_alone(threads, q, k, v, out, scale, b, l, int32_t(lengths[b] - (causal ? L - l - 1 : 0)));
}

/// Pools [blocks, G, size, D] of floats or of 8 bits, with no number where nothing is stored.
struct Pool {
  Array numbers, scales;  // scales [blocks, G, size], of 8 bits only

  Pool(ThreadPool& threads, DType dtype, const std::vector<int64_t>& shape,
       const std::vector<bool>& is_stored) {
    if (dtype == DType::i8) {
      Array rows = filled(
          any_dtype(), {shape[0] * shape[1] * shape[2], shape[3]});  // no two alike: equal ones round alike
      numbers = empty(dtype, shape), scales = empty(DType::f32, {shape[0], shape[1], shape[2]});
      auto* factors = static_cast<float*>(scales.t.data);
      kernels.quantize_rows(threads, rows.t, static_cast<int8_t*>(numbers.t.data), factors);
      numbers.t.scales = factors;
    } else {
      numbers = filled(dtype, shape);
    }
    const Array& hidden = dtype == DType::i8 ? scales : numbers;
    each(hidden.t, [&](int64_t b, int64_t g, int64_t s, int64_t d) {
      if (!is_stored[b * shape[2] + s])
        encode(hidden.at(b, g, s, d), hidden.t.dtype, one_in(2) ? NAN : INFINITY);
    });
  }

  double operator()(int64_t b, int64_t g, int64_t s, int64_t d) const {
    return numbers(b, g, s, d) * (scales.t.data ? scales(b, g, s) : 1.0);
  }
};

/// Requests of a step, each with blocks anywhere in a pool.
struct Step {
  std::vector<int32_t> starts{0}, lengths;
  int64_t size = one_of<int64_t>({1, 3, 16, 32, 64, 96}), width, blocks;
  Memory table;
  std::vector<bool> is_stored;

  Step() {
    for (int64_t r = 0, count = whole(1, 4); r < count; ++r) {
      int64_t L = one_in(2) ? 1 : whole(0, 40);
      starts.push_back(int32_t(starts.back() + L)), lengths.push_back(int32_t(L + whole(L == 0, 130)));
    }
    int64_t count = int64_t(lengths.size());
    width = (*std::max_element(lengths.begin(), lengths.end()) + size - 1) / size;
    blocks = count * width + whole(0, 3);
    std::vector<int32_t> free(blocks);
    for (int64_t i = 0; i < blocks; ++i) free[i] = int32_t(i);
    std::shuffle(free.begin(), free.end(), random_bits);
    table = exactly(4 * count * width);
    std::copy_n(free.begin(), count * width, static_cast<int32_t*>(table.get()));
    is_stored.resize(blocks * size);
    for (int64_t r = 0; r < count; ++r)
      for (int64_t s = 0; s < lengths[r]; ++s) is_stored[slot(r, s)] = true;
  }

  int64_t slot(int64_t r, int64_t s) const {
    return static_cast<const int32_t*>(table.get())[r * width + s / size] * size + s % size;
  }
  Requests requests() const {
    return {int64_t(lengths.size()), lengths.data(), starts.data(), static_cast<const int32_t*>(table.get()),
            width};
  }
};

/// Row `row` of query head h, of the request that sees the first `visible` of its stored tokens.
inline void check_row(const Step& step, const Array& q, const Pool& k, const Pool& v, const Array& out,
                      float scale, int64_t r, int64_t row, int64_t h, int64_t visible) {
  int64_t g = h / (q.t.shape[1] / k.numbers.t.shape[1]), D = q.t.shape[3];
  std::vector<double> scores(visible);
  double peak = -INFINITY, total = 0;
  for (int64_t s = 0; s < visible; ++s) {
    int64_t at = step.slot(r, s);
    for (int64_t d = 0; d < D; ++d)
      scores[s] += q(0, h, row, d) * k(at / step.size, g, at % step.size, d) * scale;
    peak = std::max(peak, scores[s]);
  }
  for (int64_t s = 0; s < visible; ++s) total += scores[s] = std::exp(scores[s] - peak);
  for (int64_t d = 0; d < D; ++d) {
    double want = 0, spread = 0;
    auto value = [&](int64_t s) {
      int64_t at = step.slot(r, s);
      return v(at / step.size, g, at % step.size, d);
    };
    for (int64_t s = 0; s < visible; ++s) want += scores[s] / total * value(s);
    double mean = v.scales.t.data ? 0.0 : want;
    for (int64_t s = 0; s < visible; ++s) spread += scores[s] / total * std::fabs(value(s) - mean);
    double rounding = narrowing(q.t.dtype, v.numbers.t.dtype, spread);
    judge.check(out(0, row, h, d), want, 2 + rounding, "of attention");
  }
}

inline void paged_attention(ThreadPool& threads) {
  DType dtype = any_dtype(), stored = one_in(2) ? DType::i8 : any_dtype();
  int64_t G = whole(1, 3), H = G * one_of<int64_t>({1, 2, 3, 7, 24}),
          D = one_of<int64_t>({64, 80, whole(1, 70)});
  Step step;
  int64_t T = step.starts.back();
  float scale = 1.0f / std::sqrt(float(D));
  Array q = filled(dtype, {1, H, T, D}, 1.0), out = empty(dtype, {1, T, H, D});
  Pool k(threads, stored, {step.blocks, G, step.size, D}, step.is_stored);
  Pool v(threads, stored, {step.blocks, G, step.size, D}, step.is_stored);
  judge.begin(stored == DType::i8 ? "attention over 8 bits" : "paged attention", dtype);
  kernels.attention(threads, q.t, k.numbers.t, v.numbers.t, step.requests(), true, scale, out.t);
  for (int64_t r = 0; r < int64_t(step.lengths.size()); ++r)
    for (int64_t row = step.starts[r]; row < step.starts[r + 1]; ++row)
      for (int64_t h = 0; h < H; ++h)
        check_row(step, q, k, v, out, scale, r, row, h, step.lengths[r] - (step.starts[r + 1] - row) + 1);
}

/// Rows of any size, subnormal and zero among them; one that holds no number, or an infinite one, has no
/// scale.
inline void quantize_rows(ThreadPool& threads) {
  DType dtype = any_dtype();
  int64_t M = whole(1, 40), D = one_of<int64_t>({1, 64, 80, whole(1, 300)});
  double size = one_of({0.0, dtype == DType::f16 ? 0x1p-22 : 0x1p-140, any_size(dtype)});
  Array x = filled(dtype, {M, D}, size, false), scales = empty(DType::f32, {M});
  Memory numbers = exactly(M * D);
  if (one_in(4))
    encode(x.at(whole(0, M - 1), whole(0, D - 1)), dtype, one_of<double>({NAN, INFINITY, -INFINITY}));
  judge.begin("quantize_rows", dtype);
  kernels.quantize_rows(threads, x.t, static_cast<int8_t*>(numbers.get()),
                        static_cast<float*>(scales.t.data));
  for (int64_t m = 0; m < M; ++m) {
    float peak = 0.0f;
    bool is_finite = true;
    for (int64_t d = 0; d < D; ++d)
      is_finite &= std::isfinite(x(m, d)), peak = std::max(peak, float(std::fabs(x(m, d))));
    float scale = is_finite ? peak / 127.0f : NAN;
    judge.equal(scales(m), scale, "of a scale");
    for (int64_t d = 0; is_finite && d < D; ++d) {
      float want = std::nearbyint(float(x(m, d)) / (scale > 0.0f ? scale : 1.0f));
      judge.equal(static_cast<int8_t*>(numbers.get())[m * D + d], std::clamp(want, -127.0f, 127.0f),
                  "of a number");
    }
  }
}

}  // namespace fuzz
