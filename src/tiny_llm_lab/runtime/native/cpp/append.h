// Storing keys and values as operators.
#pragma once

#include "operands.h"

namespace tiny_llm {

inline void require_fit(const Array& stored, const Array& added) {
  size_t ndim = stored.ndim();
  require((ndim == 3 || ndim == 4) && added.ndim() == ndim && added.shape(1) == stored.shape(1) &&
              (ndim == 3 || added.shape(3) == stored.shape(3)) && added.dtype() == stored.dtype(),
          "the added rows do not fit the stored ones");
}

/// Token l of row b of `added` [B, G, L, ...] goes to place(b, l) of `stored`: a row of it, and a token of
/// that.
template <class Place>
void store_tokens(const Tensor& added, const Tensor& stored, int64_t size, const Place& place) {
  int64_t line = size * (stored.ndim == 4 ? stored.shape[3] : 1);
  for (int64_t b = 0; b < added.shape[0]; ++b)
    for (int64_t l = 0; l < added.shape[2]; ++l) {
      auto [row, token] = place(b, l);
      for (int64_t g = 0; g < added.shape[1]; ++g) {
        int64_t target = row * stored.stride[0] + g * stored.stride[1] + token * stored.stride[2];
        int64_t source = b * added.stride[0] + g * added.stride[1] + l * added.stride[2];
        std::memcpy(static_cast<char*>(stored.data) + target * size,
                    static_cast<const char*>(added.data) + source * size, line);
      }
    }
}

/// Keys and values are appended one by one: MLX gives an operator its input's memory only if that is the
/// single output of another that may still be at work.
template <class Place>
Array append_at(InPlace in_place, const Array& stored, const Array& added, Place place) {
  auto body = [place = std::move(place), size = stored.itemsize()](
                  ThreadPool&, const auto& in, const auto& out) { store_tokens(in[1], out[0], size, place); };
  Cost cost{2 * bytes_of(added), 0};
  Memory memory{.in_place = in_place};
  return make_operator("append", {stored, added}, {stored.shape()}, {stored.dtype()}, body, cost, memory)[0];
}

/// Where tokens behind the first offsets[b] of row b go.
struct BehindRows {
  std::vector<int32_t> offsets;
  std::pair<int64_t, int64_t> operator()(int64_t b, int64_t l) const { return {b, offsets[b] + l}; }
};

/// Where the only token of row t goes: slots[t] of a pool of blocks.
struct InSlots {
  std::vector<int32_t> slots;
  int64_t block_size;
  std::pair<int64_t, int64_t> operator()(int64_t t, int64_t) const {
    return {slots[t] / block_size, slots[t] % block_size};
  }
};

/// `stored` [R, G, S, D] with `added` [B, G, L, D] written into its first B rows from offsets[b] on.
inline Array append_tokens(const Array& stored, const Array& added, const Offsets& offsets) {
  require_fit(stored, added);
  require(added.shape(0) <= stored.shape(0), "the added rows do not fit the stored ones");
  auto rows = per_row(offsets, added.shape(0));
  for (int offset : rows)
    require(offset >= 0 && offset <= stored.shape(2) - added.shape(2),
            "the added rows do not fit behind the stored ones");
  return append_at(InPlace::if_free, stored, added, BehindRows{std::move(rows)});
}

/// The pool `stored` [blocks, G, block size, D] with row t of `added` [T, G, 1, D] written to slots[t], which
/// is block * block size + index in the block; or a pool of the scales of such rows, both without D. Written
/// in its own memory, even while the step before reads it: a copy would cost more than the step.
inline Array append_to_slots(const Array& stored, const Array& added, const Array& slots) {
  require_fit(stored, added);
  auto where = numbers(slots, "slots", static_cast<int64_t>(stored.shape(0)) * stored.shape(2));
  require(static_cast<int>(where.size()) == added.shape(0) && added.shape(2) == 1, where.size(),
          " slots for ", added.shape(0), " rows");
  return append_at(InPlace::always, stored, added, InSlots{std::move(where), stored.shape(2)});
}

}  // namespace tiny_llm
