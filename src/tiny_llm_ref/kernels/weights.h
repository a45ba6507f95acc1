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
constexpr int kAhead = 2048;

/// A dense row of T, in its natural order.
template <class T>
struct DenseRows {
  static constexpr int kVectors = 8;
  static constexpr int kSpan = kVectors * kWidth;
  static constexpr int kGroup = 0;

  const Matrix& matrix;

  const T* row(int64_t n) const { return static_cast<const T*>(matrix.data) + n * matrix.columns; }

  /// Call use(j, vector) for the vectors of one span of a row.
  template <class Use>
  static inline void decode(const Use& use, const T* row, int64_t span, const float*) {
    const T* at = row + span * kSpan;
    __builtin_prefetch(reinterpret_cast<const char*>(at) + kAhead);
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) use(j, load(at + j * kWidth));
  }

  /// The same where the row ends within the span.
  template <class Use>
  inline void decode_end(const Use& use, const T* row, int64_t span, const float*) const {
    T last[kSpan] = {};
    std::memcpy(last, row + span * kSpan, (matrix.columns - span * kSpan) * sizeof(T));
    for (int j = 0; j < kVectors; ++j) use(j, load(last + j * kWidth));
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

  /// `scales` are the row's, as floats.
  template <class Use>
  static inline void decode(const Use& use, const uint32_t* row, int64_t span, const float* scales) {
    const uint32_t* at = row + span * kWidth;
    __builtin_prefetch(reinterpret_cast<const char*>(at) + kAhead);
    unpack(use, load(at), scale_of(span, scales));
  }

  template <class Use>
  inline void decode_end(const Use& use, const uint32_t* row, int64_t span, const float* scales) const {
    unpack(use, load_part(row + span * kWidth, matrix.columns / kVectors - span * kWidth),
           scale_of(span, scales));
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
  template <class Use>
  static inline void unpack(const Use& use, WordVec packed, Vec scale) {
    constexpr uint32_t kMask = (1u << kBits) - 1;
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      WordVec field = j == kVectors - 1 ? packed >> (32 - kBits) : packed & (kMask << (kBits * j));
      use(j, __builtin_convertvector(reinterpret_cast<IntVec>(field), Vec) * scale);
    }
  }

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
