// Draws a token from each row of logits, and scores tokens. Each row is computed by one thread, as if it were
// alone.
#include <cmath>
#include <limits>

#include "threshold.h"

namespace tiny_llm::TINY_ISA {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// A line of scores is followed by numbers that nothing draws, up to a whole vector.
inline float* line_of(ThreadPool& threads, int id, const Tensor& x, int64_t row, int64_t padded) {
  float* line = buffer<float>(threads, id, kValues, padded);
  widen(x.data, x.dtype, row * x.stride[0], x.shape[1], padded, line);
  std::fill(line + x.shape[1], line + padded, -kInfinity);
  return line;
}

inline void change(const DrawRows& rows, int64_t row, int64_t count, float* line) {
  for (int32_t i = rows.edit_starts[row]; i < rows.edit_starts[row + 1]; ++i) {
    auto [bias, factor, loss] = rows.changes[i];
    float& logit = line[rows.edited[i]];
    logit += bias;
    logit = (logit > 0 ? logit / factor : logit * factor) - loss;
  }
  if (rows.masks[row] < 0) return;
  const uint32_t* allowed = rows.allowed + rows.masks[row] * ((count + 31) / 32);
  for (int64_t i = 0; i < count; i += kWidth) {
    WordVec bits =
        WordVec{} + allowed[i / 32] >> reinterpret_cast<WordVec>(iota() + static_cast<int32_t>(i % 32));
    store(line + i, (bits & 1) != 0 ? load(line + i) : set(-kInfinity));
  }
}

/// The place of the largest number, the first of equals.
inline uint32_t likeliest(const float* line, int64_t count, int64_t padded) {
  Vec peak = set(-kInfinity);
  for (int64_t i = 0; i < padded; i += kWidth) peak = max(load(line + i), peak);
  Vec largest = set(highest(peak));
  int64_t i = 0;
  while (i < padded && !any(load(line + i) == largest)) i += kWidth;
  i = std::find(line + std::min(i, padded), line + count, largest[0]) - line;
  return static_cast<uint32_t>(i < count ? i : 0);  // 0 if there is nothing but NaN
}

/// Divides a line by the temperature; returns the largest score.
inline float scale_line(float* line, int64_t padded, float temperature) {
  Vec peak = set(kLowest);
  for (int64_t i = 0; i < padded; i += kWidth) {
    Vec score = min(max(load(line + i) / set(temperature), set(kLowest)), set(-kLowest));
    store(line + i, score);
    peak = max(score, peak);
  }
  return highest(peak);
}

/// The smallest score that is kept.
inline float cut_of(const float* line, int64_t count, float peak, const DrawRows& rows, int64_t row,
                    float* rest, float* room) {
  auto [temperature, top_p, min_p] = rows.settings[row];
  float cut = kLowest;
  if (int64_t top_k = rows.top_k[row]; top_k > 0 && top_k < count) {
    float bound = bound_of(line, rounded_up(count, kWidth), top_k, room);
    int64_t num = copy_if(line, count, [&](Vec x) { return x >= set(bound); }, rest);
    std::nth_element(rest, rest + top_k - 1, rest + num, std::greater<>());
    cut = rest[top_k - 1];
    count = copy_if(rest, num, [&](Vec x) { return x >= set(cut); }, rest);
    line = rest;
  }
  if (top_p < 1) cut = std::max(cut, nucleus_end(line, count, peak, top_p, room));
  if (min_p > 0) cut = std::max(cut, static_cast<float>(peak + std::log(double(min_p))));
  return cut;
}

/// The numbers of `noise.uniform` for tokens `first` and the next ones.
inline Vec uniform(int64_t first, const uint32_t* words) {
  auto x = reinterpret_cast<WordVec>(iota() + static_cast<int32_t>(first)) * 0x9E3779B9u + words[0];
  x = (x ^ x >> 16) * 0x21F0AAADu;
  x = (x ^ x >> 15) * 0x735A2D97u;
  x = x ^ x >> 16 ^ words[1];
  x = (x ^ x >> 16) * 0x85EBCA6Bu;
  x = (x ^ x >> 15) * 0xC2B2AE35u;
  x = x ^ x >> 16;
  Vec number = __builtin_convertvector(reinterpret_cast<IntVec>(x >> 1), Vec);
  return min((number + set(0.5f)) * set(0x1p-31f), set(1 - 0x1p-24f));
}

/// At most the logarithm of x to base 2, and at least that minus 0.09: the exponent plus the mantissa.
inline Vec low_log2(Vec x) { return __builtin_convertvector(as_ints(x), Vec) * set(0x1p-23f) - set(127.0f); }

/// The place of the largest score + Gumbel number, of equals the first. That is the smallest E / w, of weight
/// w and E = -log(1 - u). E is at least u, so hardly any token needs a logarithm or its weight.
inline uint32_t drawn(const float* line, int64_t padded, float peak, float cut, const uint32_t* words) {
  constexpr float kLog2e = 1.44269504f, kSlack = 1e-4f;  // more than rounding takes
  double best = kInfinity;
  float bar = kInfinity;  // the logarithm of `best`, for a score of 0
  uint32_t place = 0;
  for (int64_t i = 0; i < padded; i += kWidth) {
    Vec score = load(line + i);
    IntVec is_kept = score >= set(cut);
    if (!any(is_kept)) continue;
    Vec number = uniform(i, words);
    IntVec may_win = is_kept & (low_log2(number) <= score * set(kLog2e) + set(bar));
    if (!any(may_win)) continue;
    Vec weight = exp(score - set(peak));
    for (int lane = 0; lane < kWidth; ++lane) {
      if (!may_win[lane] || weight[lane] == 0) continue;
      double time = -std::log1p(-double(number[lane])) / double(weight[lane]);
      if (time >= best) continue;
      best = time, place = static_cast<uint32_t>(i + lane);
      bar = static_cast<float>(std::log2(best) - peak * kLog2e);
      bar += kSlack * (1 + std::abs(bar));
    }
  }
  return place;
}

void draw(ThreadPool& threads, const Tensor& x, const DrawRows& rows, uint32_t* out) {
  int64_t count = x.shape[1], padded = rounded_up(count, kWidth);
  threads.each(x.shape[0], [&](int id, int64_t row) {
    float* line = line_of(threads, id, x, row, padded);
    change(rows, row, count, line);
    float temperature = rows.settings[row].temperature;
    if (temperature == 0) {
      out[row] = likeliest(line, count, padded);
      return;
    }
    float peak = scale_line(line, padded, temperature);
    std::fill(line + count, line + padded, -kInfinity);  // not even where all scores are the lowest
    float* rest = buffer<float>(threads, id, kSums, padded + kWidth);
    float* room = buffer<float>(threads, id, kScales, padded + kWidth);
    float cut = cut_of(line, count, peak, rows, row, rest, room);
    out[row] = drawn(line, padded, peak, cut, rows.words + 2 * row);
  });
}

/// log(sum of e^(x - peak)): sums of a few vectors in floats, and of these in doubles.
inline double log_sum(const float* line, int64_t padded, float peak) {
  double all = 0;
  for (int64_t first = 0; first < padded; first += kPiece * kWidth) {
    Vec part{};
    for (int64_t i = first; i < std::min(first + kPiece * kWidth, padded); i += kWidth)
      part += exp(load(line + i) - set(peak));
    all += sum(part);
  }
  return std::log(all);
}

void score(ThreadPool& threads, const Tensor& x, const uint32_t* tokens, int num_top, float* logprobs,
           uint32_t* top, float* top_logprobs) {
  int64_t count = x.shape[1], padded = rounded_up(count, kWidth);
  threads.each(x.shape[0], [&](int id, int64_t row) {
    float* line = line_of(threads, id, x, row, padded);
    float peak = scale_line(line, padded, 1.0f);
    double norm = peak + log_sum(line, padded, peak);
    auto logprob = [&](float x) { return x > kLowest ? static_cast<float>(x - norm) : -kInfinity; };
    logprobs[row] = logprob(line[tokens[row]]);
    if (num_top == 0) return;
    float bound = bound_of(line, padded, num_top, buffer<float>(threads, id, kSums, padded + kWidth));
    auto* found = buffer<std::pair<float, uint32_t>>(threads, id, kScales, count);
    int64_t num = 0;
    each_vector(line, count, [&](Vec value, int64_t first, auto num_lanes) {
      IntVec reaches = value >= set(bound);
      if (!any(reaches)) return;
      for (int lane = 0; lane < num_lanes; ++lane)
        if (reaches[lane]) found[num++] = {-value[lane], static_cast<uint32_t>(first + lane)};
    });
    std::partial_sort(found, found + num_top, found + num);
    for (int k = 0; k < num_top; ++k) {
      top[row * num_top + k] = found[k].second;
      top_logprobs[row * num_top + k] = logprob(-found[k].first);
    }
  });
}

}  // namespace tiny_llm::TINY_ISA
