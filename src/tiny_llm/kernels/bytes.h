// Products of packed weights and bytes: how x is rounded, and how its bytes are multiplied.
#pragma once

#include "weights.h"

namespace tiny_llm::TINY_ISA {

/// Products of bytes, four to a lane, added exactly. Fields have kBits bits.
template <int kBits>
struct ByteArithmetic {
  using Part = IntVec;
  using Element = int8_t;
  static constexpr bool kIsInteger = true;
  static constexpr int kScaleGroup = 32;  // numbers of x that share a scale, at most
  static constexpr int kTileRows = kSizes.byte_rows;
  // A field that is too large for the instruction.
  static constexpr bool kIsSplit = kBits == 8 && !kTakesBytes;
  static_assert(kTakesBytes || kScaleGroup <= 32, "AVX2 adds up to 32 products in 16 bits");

  /// sum + w * x, by `dot_quads`: fields w, four to a lane, and bytes x. If kIsSplit, the halves of w are
  /// multiplied one by one, and sum is of whole integers.
  static inline Part times_plus(Vec w, Vec x, Part sum) {
    // BEGIN task 2.3.5
    throw std::runtime_error("task 2.3.5");
    // END task 2.3.5
  }

  /// A sum of `times_plus` as floats.
  static inline Vec value(Part sum) {
    // BEGIN task 2.3.5
    throw std::runtime_error("task 2.3.5");
    // END task 2.3.5
  }

  /// Rounds x [count] times 1 / scale to integers from -127 to 127, half to even; x gets what they stand for,
  /// integer * scale. Returns the scale, max |x| / 127. A scale below the smallest normal float makes all
  /// zeros. `count` is a multiple of kWidth.
  static inline float to_integers(float* x, int count, int32_t* integers) {
    // BEGIN task 2.3.5
    throw std::runtime_error("task 2.3.5");
    // END task 2.3.5
  }
};

}  // namespace tiny_llm::TINY_ISA
