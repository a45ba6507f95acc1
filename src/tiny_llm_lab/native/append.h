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

/// Token l of row b goes to place(stored, b, l): a row of what is stored, and a token of it. Keys and values
/// are appended one by one: MLX gives an operator its input's memory only if that is the single output of
/// another.
template <class Place>
Array append_at(InPlace in_place, const Array& stored, const Array& added, Place place) {
  int64_t size = stored.itemsize(), line = size * (stored.ndim() == 4 ? stored.shape(3) : 1);
  auto body = [place = std::move(place), size, line](ThreadPool&, const auto& in, const auto& out) {
    const Tensor &from = in[1], &to = out[0];
    for (int64_t b = 0; b < from.shape[0]; ++b)
      for (int64_t l = 0; l < from.shape[2]; ++l) {
        auto [row, token] = place(to, b, l);
        for (int64_t g = 0; g < from.shape[1]; ++g) {
          int64_t target = row * to.stride[0] + g * to.stride[1] + token * to.stride[2];
          int64_t source = b * from.stride[0] + g * from.stride[1] + l * from.stride[2];
          std::memcpy(static_cast<char*>(to.data) + target * size,
                      static_cast<const char*>(from.data) + source * size, line);
        }
      }
  };
  Cost cost{2 * bytes_of(added), 0};
  Memory memory{.in_place = in_place};
  return make_operator("append", {stored, added}, {stored.shape()}, {stored.dtype()}, body, cost, memory)[0];
}

/// `stored` [R, G, S, D] with `added` [B, G, L, D] written into its first B rows from offsets[b] on.
inline Array append_tokens(const Array& stored, const Array& added, const Offsets& offsets) {
  require_fit(stored, added);
  require(added.shape(0) <= stored.shape(0), "the added rows do not fit the stored ones");
  auto rows = per_row(offsets, added.shape(0));
  for (int offset : rows)
    require(offset >= 0 && offset <= stored.shape(2) - added.shape(2),
            "the added rows do not fit behind the stored ones");
  return append_at(InPlace::if_free, stored, added,
                   [rows = std::move(rows)](const Tensor&, int64_t b, int64_t l) {
                     return std::pair<int64_t, int64_t>{b, rows[b] + l};
                   });
}

/// The pool `stored` [blocks, G, block size, D] with row t of `added` [T, G, 1, D] written to slots[t], which
/// is block * block size + index in the block; or a pool of the scales of such rows, both without D. Written
/// in its own memory, even while the step before reads it: a copy would cost more than the step.
inline Array append_to_slots(const Array& stored, const Array& added, const Array& slots) {
  require_fit(stored, added);
  auto where = numbers(slots, "slots", static_cast<int64_t>(stored.shape(0)) * stored.shape(2));
  require(static_cast<int>(where.size()) == added.shape(0) && added.shape(2) == 1, where.size(),
          " slots for ", added.shape(0), " rows");
  return append_at(InPlace::always, stored, added,
                   [where = std::move(where)](const Tensor& to, int64_t t, int64_t) {
                     return std::pair<int64_t, int64_t>{where[t] / to.shape[2], where[t] % to.shape[2]};
                   });
}

}  // namespace tiny_llm
