// 8-bit rows of keys and values, each with its own scale.
#pragma once

#include "tiles.h"

namespace tiny_llm::TINY_ISA {

/// Returns a line's scale, max |x| / 127, and writes its numbers x / scale, rounded to the nearest, half to
/// even.
inline float quantize_row(const float* line, int64_t count, int64_t padded, int8_t* out) {
  // BEGIN task 3.2.5
  Vec peak{}, nothing{};
  for (int64_t i = 0; i < padded; i += kWidth) {
    Vec x = load(line + i);
    peak = max(peak, max(x, -x));
    nothing += x * Vec{};  // NaN if x is NaN or infinite; max() would drop it
  }
  float scale = highest(peak) / 127.0f + sum(nothing);
  for (int64_t i = 0; i < count; i += kWidth) {
    // Adding 1.5 * 2^23 rounds to a whole number. The scale of subnormal numbers is so coarse that a number
    // may exceed 127.
    Vec whole = load(line + i) / set(scale > 0.0f ? scale : 1.0f) + set(12582912.0f) - set(12582912.0f);
    whole = max(whole, set(-127.0f));
    whole = whole < set(127.0f) ? whole : set(127.0f);
    for (int64_t j = 0; j < std::min<int64_t>(kWidth, count - i); ++j)
      out[i + j] = static_cast<int8_t>(whole[j]);
  }
  return scale;
  // END task 3.2.5
}

/// Writes a stored 8-bit row as floats: `count` numbers times their scale, then zeros up to `padded`.
inline void scale_row(const int8_t* row, float scale, int64_t count, int64_t padded, float* out) {
  // BEGIN task 3.2.5
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) store(out + i, load(row + i) * set(scale));
  for (; i < padded; i += kWidth)
    store(out + i, load_part(row + i, std::max<int64_t>(count - i, 0)) * set(scale));
  // END task 3.2.5
}

}  // namespace tiny_llm::TINY_ISA
