// How a row of a matrix becomes vectors: dense rows and MLX's packed ones behind one face.
//
// A row is read in spans of kVectors vectors of 4 * kWidth bytes. Each kind of row has its own order of
// elements in lanes, `place`; activations are laid out in the same order. A product always adds in the order
// of vectors, spans and lanes, so a row alone and the same row among many give the same bits.
#pragma once

#include "dot.h"
#include "tiles.h"

namespace tiny_llm::TINY_ISA {

/// Products of floats, added in float32.
struct FloatArithmetic {
  using Part = Vec;
  using Element = float;  // of the activations
  static constexpr bool kIsFixed = false;
  static constexpr int kWordVectors = 1;
  static constexpr int kTileRows = kSizes.float_rows;
  static inline Part times(Vec w, Vec x) { return w * x; }
  static inline Part times_plus(Vec w, Vec x, Part sum) { return fma(w, x, sum); }
  static inline Vec value(Part sum) { return sum; }
};

/// Products of 16-bit integers, two to a lane, added exactly in 32 bits: twice the elements a vector.
struct PairArithmetic {
  using Part = IntVec;
  using Element = int16_t;
  static constexpr bool kIsFixed = true;
  static constexpr int kWordVectors = 1;
  static constexpr int kTileRows = kSizes.pair_rows;
  static inline Part times(Vec w, Vec x) { return dot_pairs(as_ints(w), as_ints(x), IntVec{}); }
  static inline Part times_plus(Vec w, Vec x, Part sum) { return dot_pairs(as_ints(w), as_ints(x), sum); }
  static inline Vec value(Part sum) { return __builtin_convertvector(sum, Vec); }
};

/// Products of bfloat16 numbers, two to a lane, added in float32. A field of 4 or 8 bits is such a number and
/// is not rounded, nor are activations.
struct BfloatArithmetic {
  using Part = Vec;
  using Element = bf16;
  static constexpr bool kIsFixed = false;
  static constexpr int kWordVectors = 2;
  static constexpr int kTileRows = kSizes.float_rows;
  static inline Part times(Vec w, Vec x) { return dot_bfloats(w, x, Vec{}); }
  static inline Part times_plus(Vec w, Vec x, Part sum) { return dot_bfloats(w, x, sum); }
  static inline Vec value(Part sum) { return sum; }
};

/// A dense row of T, in its natural order.
template <class T, class ArithmeticType = FloatArithmetic>
struct DenseRows {
  using Arithmetic = ArithmeticType;
  static constexpr int kVectors = 8;
  static constexpr int kPerVector = kWidth * sizeof(float) / sizeof(typename Arithmetic::Element);
  static constexpr int kSpan = kVectors * kPerVector;
  static constexpr int kSpanBytes = kSpan * sizeof(T);
  static constexpr int kGroup = 0;  // no scales

  const Matrix& matrix;

  const T* row(int64_t n) const { return static_cast<const T*>(matrix.data) + n * matrix.columns; }

  /// Floats of T, or pairs of bfloat16 as they are.
  static inline Vec lanes(const T* at) {
    if constexpr (kPerVector == kWidth) return load(at);
    Vec pairs;
    std::memcpy(&pairs, at, sizeof(pairs));
    return pairs;
  }

  /// What is read of a row at once. `End` serves the span within which the row ends.
  struct Span {
    const T* at;
    Vec vector(int j) const { return lanes(at + j * kPerVector); }
    Vec scale() const { return set(1.0f); }
  };
  struct End {
    T elements[kSpan];
    Vec vector(int j) const { return lanes(elements + j * kPerVector); }
    Vec scale() const { return set(1.0f); }
  };

  static inline Span span(const T* row, int64_t number, const float*) { return {row + number * kSpan}; }

  inline End end(const T* row, int64_t number, const float*) const {
    End last = {};
    std::memcpy(last.elements, row + number * kSpan, (matrix.columns - number * kSpan) * sizeof(T));
    return last;
  }

  static constexpr int place(int k) { return k; }
  static constexpr float factor(int) { return 1.0f; }
};

/// A packed row: a span is a vector of words or two, and each of its vectors takes one field of every lane of
/// such a vector, so that one mask serves all lanes. A lane is a word for floats, a half or a quarter of one
/// for integers and bfloat16. Two vectors have the same groups in the same lanes and share their scales: that
/// is worth more loads where the products themselves are fast.
template <int kBits, int kGroupSize, class ArithmeticType>
struct PackedRows {
  using Arithmetic = ArithmeticType;
  static constexpr bool kIsFixed = Arithmetic::kIsFixed;
  static constexpr bool kIsBfloat = std::is_same_v<typename Arithmetic::Element, bf16>;
  static constexpr int kLaneBits = 8 * sizeof(typename Arithmetic::Element);
  static constexpr int kFields = kLaneBits / kBits;  // of a lane
  static constexpr int kWordVectors = Arithmetic::kWordVectors;
  static constexpr int kVectors = kWordVectors * kFields;
  static constexpr int kPerWord = 32 / kBits;
  // Of 4 bits there is a table, else a field becomes a float first, and stays where it is in its word.
  static constexpr bool kIsLarge = !kIsFixed && !(kIsBfloat && kBits == 4);
  static constexpr int kWords = kWordVectors * kWidth;  // of a span
  static constexpr int kSpan = kPerWord * kWords;
  static constexpr int kSpanBytes = kWords * sizeof(uint32_t);
  static constexpr int kGroup = kGroupSize;
  static constexpr int kWordsPerGroup = kGroupSize / kPerWord;
  static constexpr int kPiece =
      std::min(kWordsPerGroup, kWords) / kWordVectors;  // words of a group, a vector
  static constexpr int kPieces = kWidth / kPiece;
  static constexpr int kFirstGroups = (kPieces + kWordVectors - 1) / kWordVectors;  // see `pieces`

  const Matrix& matrix;

  const uint32_t* row(int64_t n) const {
    return static_cast<const uint32_t*>(matrix.data) + n * (matrix.columns / kPerWord);
  }

  struct Span {
    WordVec words[kWordVectors];
    const float* scales;
    int64_t number;

    /// A field of all lanes, as integers, floats or bfloat16: if kIsLarge, too large (see `factor`).
    Vec vector(int index) const {
      WordVec words = this->words[index / kFields];
      int j = index % kFields;
      constexpr uint32_t kMask = (1u << kBits) - 1;
      constexpr uint32_t kLanes = ~0u / (~0u >> (32 - kLaneBits));  // 1 in each lane of a word
      if constexpr (kIsFixed) return as_floats(words >> (kBits * j) & kMask * kLanes);
      if constexpr (!kIsLarge) return bfloats_of_fields(words >> (kBits * j));
      auto floats = [words](int j) {
        WordVec field = j == kPerWord - 1 ? words >> (32 - kBits) : words & (kMask << (kBits * j));
        return __builtin_convertvector(reinterpret_cast<IntVec>(field), Vec);
      };
      return kIsBfloat ? paired(floats(j), floats(j + kFields)) : floats(j);
    }
    Vec scale() const { return of_lanes(number, scales); }
  };
  using End = Span;

  /// `scales` are the row's, as floats.
  static inline Span span(const uint32_t* row, int64_t number, const float* scales) {
    return span_of(row + number * kWords, scales, number);
  }

  inline End end(const uint32_t* row, int64_t number, const float* scales) const {
    uint32_t words[kWords] = {};
    std::memcpy(words, row + number * kWords,
                (matrix.columns / kPerWord - number * kWords) * sizeof(uint32_t));
    return span_of(words, scales, number);
  }

  /// A piece of every group: all of it, or for two vectors its first half, and from kPiece words further on
  /// its second half. With halves a a' b b' c c' d d' in memory and room for four in a vector, the first
  /// halves are a c b d: a and b of a load of a a' b b', c and d of one of b' c c' d. No lane moves.
  static inline WordVec pieces(const uint32_t* words) {
    WordVec found = load(words);
    if constexpr (kWordVectors == 2 && kPieces > 1)
      found = iota() / kPiece % 2 == 0 ? found : load(words + kWidth - kPiece);
    pin(found);  // loaded once: MLX's arrays begin anywhere, and a load across two cache lines counts twice
    return found;
  }

  static inline Span span_of(const uint32_t* words, const float* scales, int64_t number) {
    Span span{{}, scales, number};
    for (int v = 0; v < kWordVectors; ++v) span.words[v] = pieces(words + v * kPiece);
    return span;
  }

  /// The position of element k of a span, counted in lanes.
  static constexpr int place(int k) {
    int word = k / kPerWord, piece = word / kPiece, group = piece / kWordVectors;
    int at = group < kFirstGroups ? kWordVectors * group : kWordVectors * (group - kFirstGroups) + 1;
    int lane = at * kPiece + word % kPiece, vector = piece % kWordVectors * kFields + k % kFields;
    return vector * (kSpan / kVectors) + lane * (kPerWord / kFields) + k % kPerWord / kFields;
  }

  /// Field j of a word that is masked but not shifted down is 2^(bits * j) times too large. A power of two
  /// costs no accuracy, so the activation carries its inverse (bfloat16 below 2^-110 then counts as zero).
  /// The top field would be a negative integer: it is shifted.
  static constexpr float factor(int k) {
    int j = k % kPerWord;
    return !kIsLarge || j == kPerWord - 1 ? 1.0f : 1.0f / static_cast<float>(uint32_t{1} << (kBits * j));
  }

  /// One number of its group for each lane: a span may reach over several groups. `groups` is readable for
  /// kWidth numbers from each of the span's groups on.
  static inline Vec of_lanes(int64_t span, const float* groups) {
    if constexpr (kWordsPerGroup >= kWords) {
      return set(groups[span * kWords / kWordsPerGroup]);
    } else {
      Vec numbers = load(groups + span * (kWords / kWordsPerGroup));
      return arranged(numbers, [](int i) {
        int piece = i / kPiece;
        return piece / kWordVectors + piece % kWordVectors * kFirstGroups;
      });
    }
  }
};

/// Floats that one span takes up, once decoded: its vectors, then the scales of its lanes if it has any.
template <class Rows>
constexpr int64_t kDecoded = (Rows::kVectors + (Rows::kGroup > 0)) * kWidth;

/// The same for a span of activations, which have scales only as integers.
template <class Rows>
constexpr int64_t kPrepared = (Rows::kVectors + Rows::Arithmetic::kIsFixed) * kWidth;

}  // namespace tiny_llm::TINY_ISA
