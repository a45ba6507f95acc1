// Room for keys and values.
#pragma once

#include "operands.h"

namespace tiny_llm {

/// [rows, G, room, D] of the dtype of `stored` [R, G, S, D]: the first used[b] tokens of its row b, for as
/// many rows as `used` has. What follows them has not been written and may be any number: filling it would
/// cost the time of all its memory at once, which a caller that fills it token by token spends in small
/// pieces.
inline Array grow_storage(const Array& stored, int rows, int room, const std::vector<int>& used) {
  require(stored.ndim() == 4, "storage must be [R, G, S, D], not ", stored.shape());
  int kept = static_cast<int>(used.size());
  require(kept <= stored.shape(0) && kept <= rows, kept, " rows do not fit into ", rows, " of ",
          stored.shape(0));
  for (int tokens : used)
    require(tokens >= 0 && tokens <= stored.shape(2) && tokens <= room, "a row of ", tokens,
            " tokens does not fit into a room of ", room, " for ", stored.shape(2));
  int64_t line = static_cast<int64_t>(stored.shape(3)) * stored.itemsize(), copied = 0;
  for (int tokens : used) copied += tokens * line * stored.shape(1);
  auto body = [used, line, size = static_cast<int64_t>(stored.itemsize())](auto& team, const auto& in,
                                                                           const auto& out) {
    const Tensor &from = in[0], &to = out[0];
    int64_t groups = to.shape[1];
    team.each(static_cast<int64_t>(used.size()) * groups, [&](int, int64_t item) {
      int64_t row = item / groups, group = item % groups;
      auto* target = static_cast<char*>(to.data) + (row * to.stride[0] + group * to.stride[1]) * size;
      auto* source =
          static_cast<const char*>(from.data) + (row * from.stride[0] + group * from.stride[1]) * size;
      if (from.stride[2] * size == line) {
        std::memcpy(target, source, used[row] * line);
      } else {
        for (int64_t token = 0; token < used[row]; ++token)
          std::memcpy(target + token * line, source + token * from.stride[2] * size, line);
      }
    });
  };
  mx::Shape shape{rows, stored.shape(1), room, stored.shape(3)};
  return make_operator("grow", {stored}, {shape}, {stored.dtype()}, body, {2.0 * copied, 0})[0];
}

}  // namespace tiny_llm
