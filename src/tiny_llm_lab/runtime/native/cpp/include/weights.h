// How the words of a matrix become vectors that are multiplied: dense rows and MLX's packed ones behind one
// face.
//
// A lane is a column of the product. Word k of kWidth rows of the matrix is one vector, so a number of x
// meets all lanes at once, and each lane adds up its own column in the order of the row: a row of x alone and
// the same row among many give the same bits.
#pragma once

#include <algorithm>
#include <limits>

#include "dot.h"
#include "tiles.h"

namespace tiny_llm::TINY_ISA {

/// Products of floats, added in float32.
struct FloatArithmetic {
  using Part = Vec;       // a sum, in each lane
  using Element = float;  // of x
  static constexpr bool kIsInteger = false;
  static constexpr int kTileRows = kSizes.float_rows;
  static inline Part times_plus(Vec w, Vec x, Part sum) { return fma(w, x, sum); }
  static inline Vec value(Part sum) { return sum; }
};

/// Products of bfloat16 numbers, two to a lane, added in float32. A field of 4 or 8 bits is such a number and
/// is not rounded, nor are activations.
struct BfloatArithmetic {
  using Part = Vec;
  using Element = bf16;
  static constexpr bool kIsInteger = false;
  static constexpr int kTileRows = kSizes.float_rows;
  static inline Part times_plus(Vec w, Vec x, Part sum) { return dot_bfloats(w, x, sum); }
  static inline Vec value(Part sum) { return sum; }
};

/// Products of 16-bit integers, two to a lane, added exactly in 32 bits: those of 128 fields of 8 bits fit.
struct PairArithmetic {
  using Part = IntVec;
  using Element = int16_t;
  static constexpr bool kIsInteger = true;
  static constexpr int kScaleGroup = 128;  // numbers of x that share a scale, at most
  static constexpr int kTileRows = kSizes.pair_rows;
  static inline Part times_plus(Vec w, Vec x, Part sum) { return dot_pairs(as_ints(w), as_ints(x), sum); }
  static inline Vec value(Part sum) { return __builtin_convertvector(sum, Vec); }

  /// Rounds x [count] times 1 / scale to integers, half to even; x gets what they stand for, integer * scale.
  /// Returns the scale, max |x| / 32767. A number is off by at most 2^-16 of the largest: what bfloat16 and
  /// float16 results are rounded by is 128 and 16 times more.
  static inline float to_integers(float* x, int count, int32_t* integers) {
    Vec largest{};
    for (int k = 0; k < count; k += kWidth) largest = max(largest, max(load(x + k), -load(x + k)));
    // The inverse of a subnormal scale could be infinite: numbers that small count as zeros.
    float scale = highest(largest) / 32767.0f;
    float inverse = scale >= std::numeric_limits<float>::min() ? 1.0f / scale : 0.0f;
    for (int k = 0; k < count; k += kWidth) {
      // Adding 1.5 * 2^23 leaves the rounded integer in the lowest bits.
      Vec shifted = load(x + k) * set(inverse) + set(12582912.0f);
      store(x + k, (shifted - set(12582912.0f)) * set(scale));
      store(integers + k, as_ints(shifted) - 0x4b400000);
    }
    return scale;
  }
};

/// What both kinds of rows share. A unit of kWords words has kUnit elements of a column, and becomes kVectors
/// vectors. Vector j has field j of each piece of a lane that is as wide as an element of x.
template <int kPerWordNumber, int kWordsNumber, class ArithmeticType>
struct Units {
  using Arithmetic = ArithmeticType;
  using Element = typename Arithmetic::Element;
  static constexpr int kPerWord = kPerWordNumber, kWords = kWordsNumber, kUnit = kPerWord * kWords;
  static constexpr int kPerLane = 4 / sizeof(Element), kVectors = kUnit / kPerLane;
  /// Which element of x is number i of a unit, so that lanes of x meet lanes of vectors.
  static constexpr int element_at(int i) { return i / kPerLane + i % kPerLane * kVectors; }
};

/// Dense rows of T.
template <class T, class ArithmeticType = FloatArithmetic>
struct Dense : Units<4 / sizeof(T), 1, ArithmeticType> {
  static constexpr int kGroup = 64, kActs = 1;  // what is added up before it joins the total
  static constexpr bool kHasScales = false;
  static constexpr float factor(int) { return 1.0f; }
  static inline Vec vector(const WordVec* words, int j) {
    if constexpr (sizeof(T) == sizeof(typename ArithmeticType::Element)) return as_floats(*words);
    if constexpr (std::is_same_v<T, f16>) return floats_of_f16(j == 0 ? *words & 0xffff : *words >> 16);
    return as_floats(j == 0 ? *words << 16 : *words & 0xffff0000);
  }
};

/// Packed rows of kBits a weight. Bytes of x meet two words of 8 bits a field, or one of 4: the even ones of
/// eight, then the odd ones.
template <int kBits, int kGroupSize, class ArithmeticType>
struct Packed
    : Units<32 / kBits, kBits == 8 && sizeof(typename ArithmeticType::Element) == 1 ? 2 : 1, ArithmeticType> {
  using Element = typename ArithmeticType::Element;
  static constexpr int kGroup = kGroupSize;
  static constexpr bool kHasScales = true;
  static constexpr bool kIsBfloat = std::is_same_v<Element, bf16>;
  // Of 4 bits there is a table, else a field becomes a float first, and stays where it is in its word.
  static constexpr bool kIsLarge = !ArithmeticType::kIsInteger && !(kIsBfloat && kBits == 4);
  /// Scales of x in a group of weights.
  static constexpr int kActs = [] {
    if constexpr (ArithmeticType::kIsInteger) return std::max(1, kGroup / ArithmeticType::kScaleGroup);
    return 1;
  }();

  /// Field j of all lanes, as integers, floats or bfloat16: if kIsLarge, too large (see `factor`).
  static inline Vec vector(const WordVec* words, int j) {
    constexpr uint32_t kMask = (1u << kBits) - 1;
    if constexpr (sizeof(Element) == 1 && kBits == 8) return even_or_odd(words[0], words[1], j);
    if constexpr (sizeof(Element) == 1) return as_floats(*words >> (kBits * j) & kMask * 0x01010101);
    if constexpr (ArithmeticType::kIsInteger) return as_floats(*words >> (kBits * j) & kMask * 0x00010001);
    if constexpr (!kIsLarge) return bfloats_of_fields(*words >> (kBits * j));
    auto floats = [words](int j) {
      WordVec field = j == 32 / kBits - 1 ? *words >> (32 - kBits) : *words & (kMask << (kBits * j));
      return __builtin_convertvector(reinterpret_cast<IntVec>(field), Vec);
    };
    return kIsBfloat ? paired(floats(j), floats(j + 2)) : floats(j);
  }

  /// Of each lane's eight bytes, four in a and four in b, those with even numbers or those with odd ones.
  static inline Vec even_or_odd(WordVec a, WordVec b, int is_odd) {
    a = is_odd ? a >> 8 & 0x00ff00ff : a & 0x00ff00ff;
    b = is_odd ? b >> 8 & 0x00ff00ff : b & 0x00ff00ff;
    return as_floats(((a | a >> 8) & 0xffff) | (b | b >> 8) << 16);
  }

  /// Field j of a word that is masked but not shifted down is 2^(bits * j) times too large. A power of two
  /// costs no accuracy, so the activation carries its inverse (bfloat16 below 2^-110 then counts as zero).
  /// The top field would be a negative integer: it is shifted.
  static constexpr float factor(int k) {
    int j = k % (32 / kBits);
    return !kIsLarge || j == 32 / kBits - 1 ? 1.0f : 1.0f / static_cast<float>(uint32_t{1} << (kBits * j));
  }
};

}  // namespace tiny_llm::TINY_ISA
