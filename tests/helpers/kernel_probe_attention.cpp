// Stands behind a copy of kernels/attention.cpp: one block of a walk, step by step.
#include <cstring>
#include <exception>
#include <string>

#define PROBE extern "C" __attribute__((visibility("default"))) const char*

namespace {

template <class Use>
const char* what_of(const Use& use) {
  static std::string said;
  try {
    use();
    return nullptr;
  } catch (const std::exception& error) {
    said = error.what();
    return said.c_str();
  }
}

/// A block's rows in runs of `run` of them, as where a page ends inside of a block.
template <class Use>
void in_runs(float* rows, int64_t padded, int64_t run, const Use& use) {
  using namespace tiny_llm::TINY_ISA;
  for (int64_t first = 0; first < kBlock; first += run) {
    float* at = rows + first * padded;
    use(KvRun<float>{at, padded, first, run});
  }
}

}  // namespace

/// Sizes: stored tokens of a block, rows that may share it, and what D is rounded up to a multiple of.
PROBE sizes(int64_t* out) {
  using namespace tiny_llm::TINY_ISA;
  out[0] = kBlock, out[1] = kQueryRows, out[2] = 2 * kWidth;
  return nullptr;
}

/// query, out [rows, padded], key [kBlock, padded], weights [rows, kBlock]; peak and total are changed.
PROBE probe_weigh(float* query, float* key, float* out, float* peak, float* total, const int64_t* visible,
                  float* weights, int64_t num_rows, int64_t first, int64_t padded, float scale, int64_t run) {
  using namespace tiny_llm::TINY_ISA;
  return what_of([&] {
    AttentionRows rows{};
    rows.query = query, rows.out = out;
    std::copy_n(peak, num_rows, rows.peak);
    for (int64_t r = 0; r < num_rows; ++r) rows.total[r][0] = total[r];
    std::copy_n(visible, num_rows, rows.visible);
    in_runs(key, padded, run, [&](const auto& part) {
      score(rows, 0, num_rows, padded, padded, KeyRows<float>{part}, part.first, part.count);
    });
    softmax_block(rows, 0, num_rows, first, padded, scale);
    std::copy_n(rows.peak, num_rows, peak);
    for (int64_t r = 0; r < num_rows; ++r) total[r] = sum(rows.total[r]);
    std::memcpy(weights, rows.scores, num_rows * sizeof(rows.scores[0]));
  });
}

/// out [rows, padded] += weights [rows, kBlock] times value [kBlock, padded].
PROBE probe_gather(const float* weights, float* value, float* out, int64_t num_rows, int64_t padded,
                   int64_t run) {
  using namespace tiny_llm::TINY_ISA;
  return what_of([&] {
    AttentionRows rows{};
    rows.out = out;
    std::fill_n(rows.visible, num_rows, kBlock);
    std::memcpy(rows.scores, weights, num_rows * sizeof(rows.scores[0]));
    in_runs(value, padded, run, [&](const auto& part) { accumulate_v(rows, 0, num_rows, 0, padded, part); });
  });
}

/// The items of packed requests, of 24 rows at most, as they are taken: out [items, 3] is request, visible,
/// tokens.
PROBE probe_items(int32_t* starts, int32_t* lengths, int64_t count, int64_t heads, int64_t groups,
                  int64_t* out) {
  using namespace tiny_llm::TINY_ISA;
  return what_of([&] {
    tiny_llm::Requests requests{count, lengths, starts, starts, 0};
    tiny_llm::Tensor query{nullptr, tiny_llm::DType::f32, 4, {1, heads, starts[count], 8}};
    tiny_llm::Tensor pool{nullptr, tiny_llm::DType::f32, 4, {1, groups, 32, 8}};
    Attention a{query, pool, pool, requests, true, 1.0f, query};
    std::vector<Item> items = items_of(a, 24 / a.shared(), 1);
    largest_first(items);
    for (const Item& item : items) *out++ = item.request, *out++ = item.visible, *out++ = item.num_tokens;
  });
}
