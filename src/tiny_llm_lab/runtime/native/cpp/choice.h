// What chooses a token from rows of logits, and scores it, as operators.
#pragma once

#include "operands.h"

namespace tiny_llm {

/// uint32 [...] of x [..., V]: the place of each row's largest number.
inline Array argmax_of_rows(const Kernels* table, const Array& x) {
  require_rows(x, "x");
  mx::Shape shape(x.shape().begin(), x.shape().end() - 1);
  auto body = [table](ThreadPool& threads, const auto& in, const auto& out) {
    table->argmax(threads, as_rows(in[0]), static_cast<uint32_t*>(out[0].data));
  };
  return make_operator("argmax", {evenly_spaced(x)}, {shape}, {mx::uint32}, body, {bytes_of(x), 0})[0];
}

/// An array of settings, in one piece.
inline Array settings_of(const Array& a, mx::Dtype dtype, mx::Shape shape, const char* what) {
  require(a.dtype() == dtype && a.shape() == shape, what, " must be ", dtype, " ", shape, ", not ", a.dtype(), " ",
          a.shape());
  return one_piece(a);
}

/// uint32 [n]: a token of each row of logits [n, V]. `kernels.h` says what the settings are.
inline Array drawn_of_rows(const Kernels* table, const Array& logits, const Array& settings, const Array& top_k,
                           const Array& words, const std::vector<int>& edit_starts, const Array& edited,
                           const Array& edits, const std::vector<int>& masks, const Array& allowed) {
  require_rows(logits, "logits");
  require(logits.ndim() == 2, "logits must be [n, V]");
  int n = logits.shape(0), vocab = logits.shape(1), num_edits = edited.size(), num_masks = allowed.shape(0);
  require(static_cast<int>(masks.size()) == n && static_cast<int>(edit_starts.size()) == n + 1 &&
              edit_starts.front() == 0 && edit_starts.back() == num_edits &&
              std::is_sorted(edit_starts.begin(), edit_starts.end()),
          "masks must be [n], and edit_starts must rise from 0 to the number of edits");
  for (int mask : masks) require(mask >= -1 && mask < num_masks, "masks must be -1 to ", num_masks - 1);
  std::vector<Array> inputs{evenly_spaced(logits),
                            settings_of(settings, mx::float32, {n, 3}, "settings"),
                            settings_of(top_k, mx::uint32, {n}, "top_k"),
                            settings_of(words, mx::uint32, {n, 2}, "words"),
                            settings_of(edited, mx::uint32, {num_edits}, "edited"),
                            settings_of(edits, mx::float32, {num_edits, 3}, "edits"),
                            settings_of(allowed, mx::uint32, {num_masks, (vocab + 31) / 32}, "allowed")};
  auto body = [table, edit_starts, masks](ThreadPool& threads, const auto& in, const auto& out) {
    auto as_words = [&](int i) { return static_cast<const uint32_t*>(in[i].data); };
    auto* settings = static_cast<const DrawRows::Settings*>(in[1].data);
    table->draw(threads, as_rows(in[0]),
                {settings, as_words(2), as_words(3), edit_starts.data(), as_words(4),
                 static_cast<const float*>(in[5].data), masks.data(), as_words(6)},
                static_cast<uint32_t*>(out[0].data));
  };
  return make_operator("draw", std::move(inputs), {{n}}, {mx::uint32}, body, {bytes_of(logits), 0})[0];
}

/// Logprobs [n] of tokens, likeliest tokens [n, k] and their logprobs, from logits [n, V].
inline std::vector<Array> scores_of_rows(const Kernels* table, const Array& logits, const Array& tokens,
                                         int num_top) {
  require_rows(logits, "logits");
  require(logits.ndim() == 2, "logits must be [n, V]");
  int n = logits.shape(0), k = std::min(num_top, logits.shape(1));
  require(k >= 0, "num_top must be 0 or more, not ", num_top);
  std::vector<Array> inputs{evenly_spaced(logits), settings_of(tokens, mx::uint32, {n}, "tokens")};
  auto body = [table, k](ThreadPool& threads, const auto& in, const auto& out) {
    table->score(threads, as_rows(in[0]), static_cast<const uint32_t*>(in[1].data), k,
                 static_cast<float*>(out[0].data), static_cast<uint32_t*>(out[1].data),
                 static_cast<float*>(out[2].data));
  };
  return make_operator("score", std::move(inputs), {{n}, {n, k}, {n, k}}, {mx::float32, mx::uint32, mx::float32},
                       body, {bytes_of(logits), 0});
}

}  // namespace tiny_llm
