// 8-bit rows of keys and values, each with its own scale.
#pragma once

#include "tiles.h"

namespace tiny_llm::TINY_ISA {

/// Returns a line's scale, max |x| / 127, and writes its numbers x / scale, rounded to the nearest, half to
/// even.
inline float quantize_row(const float* line, int64_t count, int64_t padded, int8_t* out) {
  // BEGIN task 3.2.5
  throw std::runtime_error("task 3.2.5");
  // END task 3.2.5
}

/// Writes a stored 8-bit row as floats: `count` numbers times their scale, then zeros up to `padded`.
inline void scale_row(const int8_t* row, float scale, int64_t count, int64_t padded, float* out) {
  // BEGIN task 3.2.5
  throw std::runtime_error("task 3.2.5");
  // END task 3.2.5
}

}  // namespace tiny_llm::TINY_ISA
