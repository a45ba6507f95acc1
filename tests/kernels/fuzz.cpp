// Every operator of the table with random shapes, strides, dtypes and numbers, against plain loops in double.
//
//   fuzz SEED CALLS    (built and run by sanitize.py)
#include <algorithm>

#include "fuzz_attention.h"
#include "fuzz_delta.h"
#include "fuzz_draw.h"
#include "fuzz_experts.h"

namespace fuzz {
namespace {

double inverse_rms(const std::vector<double>& x, double eps) {
  double total = 0;
  for (double number : x) total += number * number;
  return 1 / std::sqrt(total / double(x.size()) + eps);
}

void rms_norm(ThreadPool& threads) {
  DType dtype = any_dtype();
  int64_t M = whole(1, 40), E = whole(1, one_in(2) ? 40 : 2000);
  double size = dtype == DType::f16 ? 1.0 : std::ldexp(1.0, int(whole(-30, 30)));
  Array x = filled(dtype, {M, E}, size, false), delta = filled(dtype, {M, E}, size, false);
  Array weight = filled(any_dtype(), {E}), sum = empty(dtype, {M, E}), out = empty(dtype, {M, E});
  bool has_delta = one_in(2);
  judge.begin("rms_norm", dtype);
  kernels.rms_norm(threads, x.t, has_delta ? delta.t : Tensor{}, weight.t, 1e-6f,
                   has_delta ? sum.t : Tensor{}, out.t);
  for (int64_t m = 0; m < M; ++m) {
    std::vector<double> row;
    for (int64_t e = 0; e < E; ++e) {
      float wide = static_cast<float>(x(m, e)) + static_cast<float>(delta(m, e));
      char rounded[4];
      encode(rounded, dtype, wide);
      row.push_back(has_delta ? decode(rounded, dtype) : x(m, e));
      if (has_delta) judge.equal(sum(m, e), row.back(), "of the sum");
    }
    double factor = inverse_rms(row, 1e-6);
    for (int64_t e = 0; e < E; ++e) {
      double want = row[e] * factor * weight(e);
      judge.check(out(m, e), want, std::fabs(want), "of a norm");
    }
  }
}

/// All bit patterns, infinities and NaN among them, through the conversions alone.
void conversions(ThreadPool& threads) {
  DType dtype = any_dtype();
  int64_t E = whole(1, 300);
  Array x = empty(dtype, {1, E}), delta = empty(dtype, {1, E}), weight = filled(dtype, {E});
  Array sum = empty(dtype, {1, E}), out = empty(dtype, {1, E});
  for (Array* a : {&x, &delta})
    for (int64_t i = 0; i < E * bytes_of(dtype); ++i)
      static_cast<uint8_t*>(a->t.data)[i] = uint8_t(random_bits());
  judge.begin("conversions", dtype);
  kernels.rms_norm(threads, x.t, delta.t, weight.t, 1e-6f, sum.t, out.t);
  for (int64_t e = 0; e < E; ++e) {
    float wide = static_cast<float>(x(0, e)) + static_cast<float>(delta(0, e));
    char rounded[4];
    encode(rounded, dtype, wide);
    judge.equal(sum(0, e), decode(rounded, dtype), "of a conversion");
  }
}

void rope(ThreadPool& threads) {
  DType dtype = any_dtype();
  int64_t B = whole(1, 3), L = whole(1, 20), H = whole(1, 9), P = L + whole(0, 30);
  int64_t half = one_of<int64_t>({32, 40, 64, whole(1, 40)}), D = 2 * half + (one_in(2) ? 0 : whole(0, 200));
  Array x = filled(dtype, {B, L, H, D}, 1.0, false), weight = filled(any_dtype(), {D});
  Array cos = filled(DType::f32, {P, half}), sin = filled(DType::f32, {P, half});
  Array out = empty(dtype, {B, L, H, D});
  bool traditional = one_in(3), has_weight = one_in(2);
  std::vector<int32_t> offsets;
  for (int64_t b = 0; b < B; ++b) offsets.push_back(int32_t(whole(0, P - L)));
  judge.begin("rope", dtype);
  kernels.rope(threads, x.t, has_weight ? weight.t : Tensor{}, 1e-6f, cos.t, sin.t, offsets.data(),
               traditional, out.t);
  each(x.t, [&](int64_t b, int64_t l, int64_t h, int64_t d) {
    std::vector<double> head;
    for (int64_t i = 0; i < D; ++i) head.push_back(x(b, l, h, i));
    double factor = has_weight ? inverse_rms(head, 1e-6) : 1.0;
    for (int64_t i = 0; has_weight && i < D; ++i) head[i] *= factor * weight(i);
    if (d >= 2 * half) return judge.check(out(b, l, h, d), head[d], std::fabs(head[d]), "of what stays");
    int64_t i = traditional ? d / 2 : d % half, p = offsets[b] + l;
    double first = head[traditional ? 2 * i : i], second = head[traditional ? 2 * i + 1 : i + half];
    bool is_first = traditional ? d % 2 == 0 : d < half;
    double want = is_first ? first * cos(p, i) - second * sin(p, i) : first * sin(p, i) + second * cos(p, i);
    judge.check(out(b, l, h, d), want, std::fabs(first) + std::fabs(second), "of a rotation");
  });
}

void swiglu(ThreadPool& threads) {
  DType dtype = any_dtype();
  int64_t M = whole(1, 9), I = whole(1, one_in(2) ? 40 : 3000);
  double size = dtype == DType::f16 ? one_of({1.0, 200.0}) : one_of({1.0, 200.0, 1e30});
  Array gate = filled(dtype, {M, I}, size, false), up = filled(dtype, {M, I}, 1.0, false);
  Array out = empty(dtype, {M, I});
  judge.begin("swiglu", dtype);
  kernels.swiglu(threads, gate.t, up.t, out.t);
  each(out.t, [&](int64_t m, int64_t i, int64_t, int64_t) {
    double g = gate(m, i), want = g / (1 + std::exp(-g)) * up(m, i);
    judge.check(out(m, i), want, std::fabs(want) + 1e-30, "of swiglu");  // e^88 may be infinite
  });
}

void sigmoid_gate(ThreadPool& threads) {
  DType dtype = any_dtype();
  int64_t M = whole(1, 9), I = whole(1, one_in(2) ? 40 : 3000);
  Array x = filled(dtype, {M, I}, 1.0, false), gate = filled(any_dtype(), {M, one_in(2) ? 1 : I}, 9.0, false);
  Array out = empty(dtype, {M, I});
  judge.begin("sigmoid_gate", dtype);
  kernels.sigmoid_gate(threads, x.t, gate.t, out.t);
  each(out.t, [&](int64_t m, int64_t i, int64_t, int64_t) {
    double want = x(m, i) / (1 + std::exp(-gate(m, gate.t.shape[1] == 1 ? 0 : i)));
    judge.check(out(m, i), want, std::fabs(want) + 1e-30, "of a gate");
  });
}

void embedding(ThreadPool& threads) {
  int bits = one_of({0, 4, 8}), group = one_of({32, 64, 128});
  int64_t M = whole(1, 40), V = whole(1, 60),
          E = bits ? group * whole(1, 9) : one_of({whole(1, 600), 64 * whole(1, 9)});
  DType dtype = any_dtype();
  AnyMatrix w(V, E, bits, group, dtype, any_size(dtype));
  Array out = empty(dtype, {M, E});
  Memory tokens = exactly(4 * M);
  auto* token = static_cast<int32_t*>(tokens.get());
  for (int64_t m = 0; m < M; ++m) token[m] = int32_t(whole(0, V - 1));
  judge.begin("embedding", dtype);
  kernels.embedding(threads, token, M, w.any(), out.t);
  each(out.t, [&](int64_t m, int64_t e, int64_t, int64_t) {
    judge.check(out(m, e), w(token[m], e), w.size, "of an embedding");
  });
}

void argmax(ThreadPool& threads) {
  DType dtype = any_dtype();
  int64_t M = whole(1, 6), V = one_in(8) ? whole(16000, 40000) : whole(1, 900);
  Array x = logits(dtype, M, V), out = empty(DType::u32, {M});
  judge.begin("argmax", dtype);
  kernels.argmax(threads, x.t, static_cast<uint32_t*>(out.t.data));
  for (int64_t m = 0; m < M; ++m) {
    int64_t best = 0;
    for (int64_t v = 1; v < V; ++v)
      if (x(m, v) > x(m, best)) best = v;
    judge.equal(static_cast<uint32_t*>(out.t.data)[m], double(best), "of argmax");
  }
}

}  // namespace
}  // namespace fuzz

int main(int argc, char** argv) {
  using namespace fuzz;
  uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  int64_t calls = argc > 2 ? std::strtoll(argv[2], nullptr, 10) : 1000;
  StrictPool strict(3), alone(1);
  std::unique_ptr<ThreadPool> pair = make_thread_pool(2), crowd = make_thread_pool(4);
  ThreadPool* pools[] = {&strict, &alone, pair.get(), crowd.get()};
  void (*operators[])(ThreadPool&) = {linear,
                                      linear,
                                      linear,
                                      attention,
                                      paged_attention,
                                      paged_attention,
                                      quantize_rows,
                                      quantized_matmul_step,
                                      rms_norm,
                                      conversions,
                                      rope,
                                      swiglu,
                                      sigmoid_gate,
                                      route,
                                      expert_mlp,
                                      embedding,
                                      argmax,
                                      draw,
                                      draw,
                                      score,
                                      gated_delta};
  for (int64_t call = 0; call < calls; ++call) {
    random_bits.seed(seed + uint64_t(call));  // a failure is repeated alone: fuzz SEED+CALL 1
    ThreadPool& threads = *pools[whole(0, 3)];
    std::fprintf(stderr, "\r%lld", static_cast<long long>(seed + call));
    operators[whole(0, std::size(operators) - 1)](threads);
  }
  std::fprintf(stderr, "\n");
  for (auto& [name, seen] : judge.seen)
    std::printf("%-28s %8lld calls, worst error %.2f of what is allowed\n", name.c_str(),
                static_cast<long long>(seen.first), seen.second);
}
