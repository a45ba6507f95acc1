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
    IntVec field = as_ints(w), number = as_ints(x);
    if constexpr (!kIsSplit) return dot_quads(field, number, sum);
    IntVec low = whole(dot_quads(field & 0x0f0f0f0f, number, IntVec{}));
    return sum + low + (whole(dot_quads(field >> 4 & 0x0f0f0f0f, number, IntVec{})) << 4);
    // END task 2.3.5
  }

  /// A sum of `times_plus` as floats.
  static inline Vec value(Part sum) {
    // BEGIN task 2.3.5
    return __builtin_convertvector(kIsSplit ? sum : whole(sum), Vec);
    // END task 2.3.5
  }

  /// Rounds x [count] times 1 / scale to integers from -127 to 127, half to even; x gets what they stand for,
  /// integer * scale. Returns the scale, max |x| / 127. A scale below the smallest normal float makes all
  /// zeros. `count` is a multiple of kWidth.
  static inline float to_integers(float* x, int count, int32_t* integers) {
    // BEGIN task 2.3.5
    Vec largest{};
    for (int k = 0; k < count; k += kWidth) largest = max(largest, max(load(x + k), -load(x + k)));
    float scale = highest(largest) / 127.0f;
    float inverse = scale >= std::numeric_limits<float>::min() ? 1.0f / scale : 0.0f;
    for (int k = 0; k < count; k += kWidth) {
      // Adding 1.5 * 2^23 leaves the rounded integer in the lowest bits.
      Vec shifted = load(x + k) * set(inverse) + set(12582912.0f);
      store(x + k, (shifted - set(12582912.0f)) * set(scale));
      store(integers + k, as_ints(shifted) - 0x4b400000);
    }
    return scale;
    // END task 2.3.5
  }
};

}  // namespace tiny_llm::TINY_ISA
