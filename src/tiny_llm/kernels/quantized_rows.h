// Rows of keys and values in 8 bits, each with its own scale.
#pragma once

#include "tiles.h"

namespace tiny_llm::TINY_ISA {

/// A line's scale, max |x| / 127, and its numbers x / scale, rounded to the nearest, halfway to the even one.
inline float quantize_row(const float* line, int64_t count, int64_t padded, int8_t* out) {
  // BEGIN task 3.2.5
  throw std::runtime_error("task 3.2.5");
  // END task 3.2.5
}

/// A stored row of 8 bits as floats: `count` numbers times their scale, and zeros up to `padded`.
inline void scale_row(const int8_t* row, float scale, int64_t count, int64_t padded, float* out) {
  // BEGIN task 3.2.5
  throw std::runtime_error("task 3.2.5");
  // END task 3.2.5
}

}  // namespace tiny_llm::TINY_ISA
