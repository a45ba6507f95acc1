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

/// The numbers of an array of NumPy that is a field of a `DrawTable`, `size` of them.
template <class T>
std::vector<T> numbers_in(nb::handle table, const char* field, size_t size) {
  auto array = nb::cast<nb::ndarray<const T, nb::c_contig, nb::device::cpu>>(table.attr(field));
  require(array.size() == size, field, " must have ", size, " numbers, not ", array.size());
  return {array.data(), array.data() + size};
}

/// uint32 [n]: a token of each row of logits [n, V], drawn as a `DrawTable` says.
inline Array drawn_of_rows(const Kernels* table, const Array& logits, nb::handle how) {
  require_rows(logits, "logits");
  require(logits.ndim() == 2, "logits must be [n, V]");
  size_t n = logits.shape(0), words = (logits.shape(1) + 31) / 32;
  auto starts = numbers_in<int32_t>(how, "edit_starts", n + 1), masks = numbers_in<int32_t>(how, "masks", n);
  size_t num_masks = n == 0 ? 0 : std::max(0, *std::max_element(masks.begin(), masks.end()) + 1);
  auto body = [table, starts, masks, settings = numbers_in<float>(how, "settings", 3 * n),
               top_k = numbers_in<int32_t>(how, "top_k", n), keys = numbers_in<uint32_t>(how, "words", 2 * n),
               edited = numbers_in<uint32_t>(how, "edited", starts[n]),
               changes = numbers_in<float>(how, "changes", 3 * starts[n]),
               allowed = numbers_in<uint32_t>(how, "allowed", num_masks * words)](
                  ThreadPool& threads, const auto& in, const auto& out) {
    auto* each_settings = reinterpret_cast<const DrawRows::Settings*>(settings.data());
    auto* each_change = reinterpret_cast<const DrawRows::Change*>(changes.data());
    table->draw(threads, as_rows(in[0]),
                {each_settings, top_k.data(), keys.data(), starts.data(), edited.data(), each_change,
                 masks.data(), allowed.data()},
                static_cast<uint32_t*>(out[0].data));
  };
  return make_operator("draw", {evenly_spaced(logits)}, {{logits.shape(0)}}, {mx::uint32}, body,
                       {bytes_of(logits), 0})[0];
}

/// Logprobs [n] of tokens, likeliest tokens [n, k] and their logprobs, from logits [n, V].
inline std::vector<Array> scores_of_rows(const Kernels* table, const Array& logits, const Array& tokens,
                                         int num_top) {
  require_rows(logits, "logits");
  require(logits.ndim() == 2, "logits must be [n, V]");
  int n = logits.shape(0), k = std::min(num_top, logits.shape(1));
  require(k >= 0, "num_top must be 0 or more, not ", num_top);
  require(tokens.dtype() == mx::uint32 && tokens.shape() == mx::Shape{n}, "tokens must be uint32 [", n, "]");
  std::vector<Array> inputs{evenly_spaced(logits), one_piece(tokens)};
  auto body = [table, k](ThreadPool& threads, const auto& in, const auto& out) {
    table->score(threads, as_rows(in[0]), static_cast<const uint32_t*>(in[1].data), k,
                 static_cast<float*>(out[0].data), static_cast<uint32_t*>(out[1].data),
                 static_cast<float*>(out[2].data));
  };
  return make_operator("score", std::move(inputs), {{n}, {n, k}, {n, k}},
                       {mx::float32, mx::uint32, mx::float32}, body, {bytes_of(logits), 0});
}

}  // namespace tiny_llm
