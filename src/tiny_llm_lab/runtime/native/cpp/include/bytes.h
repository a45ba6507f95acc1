// x in bytes, and the matrix with its columns in lanes: what a product of bytes is given.
//
// Word k of kWidth rows of the matrix is one vector, so a number of x meets all lanes at once, and each lane
// adds up its own column. Sums of integers are exact in any order. The few floats, one a group, are added in
// the order of the row: so a row of x alone and the same row among many give the same bits.
#pragma once

#include <algorithm>
#include <limits>

#include "columns.h"
#include "transpose.h"

namespace tiny_llm::TINY_ISA {

// Numbers of x that share a scale; fewer where a group of weights has fewer.
constexpr int kActivationGroup = 32;

/// Words of kBits a weight, in groups of kGroup. A unit is what 8 numbers of x meet: a word of 4 bits, or two
/// of 8. Its first vector has the even ones of 8 fields as bytes, its second the odd ones.
template <int kBitsNumber, int kGroupNumber>
struct PackedBytes {
  static constexpr int kBits = kBitsNumber, kGroup = kGroupNumber, kUnit = 8, kWords = kBits / 4;
  static constexpr int kGroupWords = kGroup / kUnit * kWords;
  static constexpr int kActs = std::max(1, kGroup / kActivationGroup);  // scales of x in a group
  static constexpr int kAct = kGroup / kActs;
  static_assert(kTakesBytes || kAct <= 32, "AVX2 adds up to 32 products in 16 bits");
  static constexpr bool kIsSplit = kBits == 8 && !kTakesBytes;

  static inline IntVec vector(const WordVec* words, bool is_odd) {
    if constexpr (kBits == 4) return reinterpret_cast<IntVec>(words[0] >> (is_odd ? 4 : 0) & 0x0f0f0f0f);
    WordVec a = words[0] >> (is_odd ? 8 : 0) & 0x00ff00ff, b = words[1] >> (is_odd ? 8 : 0) & 0x00ff00ff;
    return reinterpret_cast<IntVec>(((a | a >> 8) & 0xffff) | (b | b >> 8) << 16);
  }

  /// sum + w * x. A byte that is too large for the instruction is multiplied half by half.
  static inline IntVec times_plus(IntVec w, IntVec x, IntVec sum) {
    if constexpr (!kIsSplit) return dot_quads(w, x, sum);
    IntVec low = whole(dot_quads(w & 0x0f0f0f0f, x, IntVec{}));
    return sum + low + (whole(dot_quads(w >> 4 & 0x0f0f0f0f, x, IntVec{})) << 4);
  }
  static inline Vec value(IntVec sum) { return __builtin_convertvector(kIsSplit ? sum : whole(sum), Vec); }
};

/// The rows of x of one call.
struct ByteRows {
  const uint32_t* words;  // [M, stride]: two a unit, its even bytes and its odd ones
  const float* scales;    // [M, groups, kActs]
  const float* sums;      // [M, groups]: the sum of each group, which its bias multiplies
  int64_t rows, stride, groups;
};

/// Where number k of a unit of x is among its bytes.
constexpr int byte_at(int k) { return k % 2 * 4 + k / 2; }

/// The rows of a matrix, or of its scales or biases, from one of them to the last: `count` rows of `bytes`
/// bytes. A read may run past the end of a row; nothing uses what it finds there.
struct RowBytes {
  const char* data;
  int64_t bytes, count;

  /// Whether the matrix's memory contains words `first` to `first + words - 1` of kWidth rows from `row` on.
  bool has(int64_t row, int64_t first, int64_t words) const {
    return (row + kWidth - 1) * bytes + (first + words) * 4 <= count * bytes;
  }

  /// Copies `size` bytes of each of kWidth rows, from word `first` on, with zeros for what is not there.
  void copy(int64_t row, int64_t first, int64_t size, char* out) const {
    std::memset(out, 0, size * kWidth);
    int64_t left = std::clamp<int64_t>(bytes - first * 4, 0, size);
    for (int64_t i = 0; i < std::min<int64_t>(kWidth, count - row); ++i)
      std::memcpy(out + i * size, data + (row + i) * bytes + first * 4, left);
  }
};

constexpr int64_t kPanelWords = 128;  // of a vector of columns: a part of the first cache

/// Writes words `first` to `first + count - 1` of the rows of N vectors of columns into panel [count, N]:
/// lane i of vector n is row n * kWidth + i. `count` is rounded up to kWidth.
template <int N>
void fill_panel(const RowBytes& rows, int64_t first, int64_t count, WordVec* panel) {
  for (int n = 0; n < N; ++n) {
    alignas(64) char edge[(kPanelWords + kWidth) * sizeof(WordVec)];
    const char* at = rows.data + n * kWidth * rows.bytes + first * 4;
    int64_t stride = rows.bytes;
    if (!rows.has(n * kWidth, first, rounded_up(count, kWidth))) {
      stride = rounded_up(count, kWidth) * 4;
      rows.copy(n * kWidth, first, stride, edge);
      at = edge;
    }
    for (int64_t k = 0; k < count; k += kWidth, at += sizeof(WordVec)) {
      WordVec square[kWidth];
      const char* row = at;
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i, row += stride) {
        std::memcpy(&square[i], row, sizeof(WordVec));  // 16-bit scales may begin anywhere
        pin(square[i]);
        __builtin_prefetch(row + N * kWidth * rows.bytes, 0, 2);  // what is read of the next columns
      }
      transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) panel[(k + i) * N + n] = square[i];
    }
  }
}

/// Number i of those that a word has: floats of T.
template <class T>
inline Vec number_of(WordVec word, int64_t i) {
  if constexpr (sizeof(T) == 4) return as_floats(word);
  uint16_t halves[kWidth];
  store_halves(halves, i == 0 ? word & 0xffff : word >> 16);
  return load(reinterpret_cast<const T*>(halves));
}

/// The scales or biases of N vectors of columns from `first` on as floats, [groups, N].
template <int N>
void lay_out_groups(const Matrix& w, const void* data, int64_t first, Vec* out) {
  visit(w.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int64_t kNumbers = 4 / sizeof(T);  // of a word; the last one may reach into the next row
    int64_t groups = w.columns / w.group_size, bytes = groups * sizeof(T);
    WordVec words[rounded_up(kPanelWords, kWidth) * N];
    RowBytes rows{static_cast<const char*>(data) + first * bytes, bytes, w.rows - first};
    for (int64_t g = 0; g < groups; g += kPanelWords * kNumbers) {
      int64_t count = std::min(kPanelWords * kNumbers, groups - g);
      fill_panel<N>(rows, g / kNumbers, (count + kNumbers - 1) / kNumbers, words);
      for (int64_t i = 0; i < count * N; ++i)
        out[g * N + i] = number_of<T>(words[i / N / kNumbers * N + i % N], i / N % kNumbers);
    }
  });
}

}  // namespace tiny_llm::TINY_ISA
