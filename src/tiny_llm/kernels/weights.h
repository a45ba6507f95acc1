// How a row of a matrix becomes vectors of floats: dense rows and MLX's packed ones behind one face.
//
// A row is read in spans of kVectors vectors. Which element stands in which lane is the source's affair; it
// tells the activations by `prepare`, so that lane meets lane. Everything a product adds up, it adds in the
// order of spans, vectors and lanes, whoever asks: that order is what makes one row alone and the same row
// among many equal to the last bit.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace tiny_llm::TINY_ISA {

// Bytes that memory is asked for before they are needed.
constexpr int kAhead = 4096;

/// A dense row of T, in its natural order.
template <class T>
struct DenseRows {
  static constexpr int kVectors = 8;
  static constexpr int kSpan = kVectors * kWidth;
  static constexpr int kGroup = 0;  // no scales

  const Matrix& matrix;

  const T* row(int64_t n) const { return static_cast<const T*>(matrix.data) + n * matrix.columns; }

  /// What is read of a row's span at once. `End` serves the span within which the row ends.
  struct Span {
    const T* at;
    Vec vector(int j) const { return load(at + j * kWidth); }
    Vec scale() const { return set(1.0f); }
  };
  struct End {
    T elements[kSpan];
    Vec vector(int j) const { return load(elements + j * kWidth); }
    Vec scale() const { return set(1.0f); }
  };

  static inline Span span(const T* row, int64_t number, const float*) {
    __builtin_prefetch(reinterpret_cast<const char*>(row + number * kSpan) + kAhead);
    return {row + number * kSpan};
  }

  inline End end(const T* row, int64_t number, const float*) const {
    End last = {};
    std::memcpy(last.elements, row + number * kSpan, (matrix.columns - number * kSpan) * sizeof(T));
    return last;
  }

  static int place(int k) { return k; }
  static float factor(int) { return 1.0f; }
};

/// A packed row: word w of a span holds the weights w * kVectors to (w + 1) * kVectors - 1, so that vector j
/// takes the j-th field of every word: one mask for all lanes, and no shuffling.
template <int kBits, int kGroupSize>
struct PackedRows {
  static constexpr int kVectors = 32 / kBits;  // fields of a word
  static constexpr int kSpan = kVectors * kWidth;
  static constexpr int kGroup = kGroupSize;
  static constexpr int kWordsPerGroup = kGroupSize / kVectors;

  const Matrix& matrix;

  const uint32_t* row(int64_t n) const {
    return static_cast<const uint32_t*>(matrix.data) + n * (matrix.columns / kVectors);
  }

  struct Span {
    WordVec words;
    const float* scales;
    int64_t number;
    Vec vector(int j) const {
      constexpr uint32_t kMask = (1u << kBits) - 1;
      WordVec field = j == kVectors - 1 ? words >> (32 - kBits) : words & (kMask << (kBits * j));
      return __builtin_convertvector(reinterpret_cast<IntVec>(field), Vec);
    }
    Vec scale() const { return scale_of(number, scales); }
  };
  using End = Span;

  /// `scales` are the row's, as floats.
  static inline Span span(const uint32_t* row, int64_t number, const float* scales) {
    const uint32_t* at = row + number * kWidth;
    __builtin_prefetch(reinterpret_cast<const char*>(at) + kAhead);
    return {load(at), scales, number};
  }

  inline End end(const uint32_t* row, int64_t number, const float* scales) const {
    return {load_part(row + number * kWidth, matrix.columns / kVectors - number * kWidth), scales, number};
  }

  /// Where element k of a span stands.
  static int place(int k) { return k % kVectors * kWidth + k / kVectors; }

  /// A field that is masked but not shifted down is 2^(bits * j) times too large. A power of two costs no
  /// accuracy, so the activation carries its inverse. The top field would be a negative integer: it is shifted.
  static float factor(int k) {
    int j = k % kVectors;
    return j == kVectors - 1 ? 1.0f : 1.0f / static_cast<float>(uint32_t{1} << (kBits * j));
  }

 private:
  /// One scale a lane: a span of a wide machine may reach over several groups.
  static inline Vec scale_of(int64_t span, const float* scales) {
    if constexpr (kWordsPerGroup >= kWidth) {
      return set(scales[span * kWidth / kWordsPerGroup]);
    } else {
      constexpr int kGroups = kWidth / kWordsPerGroup;
      Vec scale = set(scales[span * kGroups]);
#pragma GCC unroll 4
      for (int g = 1; g < kGroups; ++g)
        scale = iota() >= g * kWordsPerGroup ? set(scales[span * kGroups + g]) : scale;
      return scale;
    }
  }
};

}  // namespace tiny_llm::TINY_ISA
