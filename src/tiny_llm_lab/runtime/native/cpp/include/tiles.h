// What products and attention share: rows of floats in and out, and the tile that multiplies them.
#pragma once

#include <algorithm>
#include <type_traits>

#include "dot.h"
#include "exp.h"
#include "kernels.h"
#include "sizes.h"

namespace tiny_llm::TINY_ISA {

inline int64_t rounded_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

/// Numbers as floats, and zeros up to `padded`, a multiple of kWidth.
template <class T>
inline void widen(const T* from, int64_t count, int64_t padded, float* out) {
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) store(out + i, load(from + i));
  for (; i < padded; i += kWidth) store(out + i, load_part(from + i, std::max<int64_t>(count - i, 0)));
}

/// The same for any float dtype, from element `first` of `data` on. What a lambda has captured the compiler
/// reads anew after every store, as a Vec may lie anywhere: the loop has a function of its own.
inline void widen(const void* data, DType dtype, int64_t first, int64_t count, int64_t padded, float* out) {
  visit(dtype, [&](auto* type) {
    widen(static_cast<decltype(type)>(const_cast<void*>(data)) + first, count, padded, out);
  });
}

/// The first `count` floats of a line, rounded to T.
template <class T>
inline void narrow(const float* line, int64_t count, T* out) {
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) store(out + i, load(line + i));
  if (i < count) store_part(out + i, load_part(line + i, count - i), count - i);
}

/// The same, to the dtype of `out`, at its element `first`.
inline void narrow(const float* line, int64_t count, const Tensor& out, int64_t first) {
  visit(out.dtype, [&](auto* type) { narrow(line, count, static_cast<decltype(type)>(out.data) + first); });
}

/// Call use(height, first) for tiles of kHeight rows, then for a lower one of what is left.
template <int kHeight, class Use>
inline void in_tiles(int64_t num_rows, const Use& use, int64_t row = 0) {
  for (; row + kHeight <= num_rows; row += kHeight) use(std::integral_constant<int, kHeight>(), row);
  if constexpr (kHeight > 1) in_tiles<kHeight - 1>(num_rows, use, row);
}

/// Asks the second cache for `count` numbers. Always inline, as GCC 12 takes a function that only prefetches
/// for one without effect, and drops its calls.
template <class T>
[[gnu::always_inline]] inline void prefetch(const T* next, int64_t count) {
  for (int64_t i = 0; i < count; i += 64 / sizeof(T)) __builtin_prefetch(next + i, 0, 2);
}

/// Whether attention multiplies pairs of bfloat16. Cores with matrix registers multiply floats twice as fast.
#if defined(__AMX_TILE__)
constexpr bool kMultipliesPairs = false;
#else
constexpr bool kMultipliesPairs = kHasBfloatDots;
#endif

/// A stored bfloat16 that is multiplied as it is, two to a lane, as are the numbers of x.
struct PairedBf16 : bf16 {};

/// A stored integer of 8 bits, which is a bfloat16 number as well: multiplied like one, and scaled after
/// that.
struct PairedInt8 {
  int8_t number;
};

template <class T>
constexpr bool kIsPaired = std::is_same_v<T, PairedBf16> || std::is_same_v<T, PairedInt8>;

/// Scratch buffers of a thread.
enum Slot { kValues, kSums, kScales, kBiases, kPanel, kTotals, kUses, kUsePlaces };

template <class T>
T* buffer(ThreadPool& threads, int id, Slot slot, int64_t count) {
  return static_cast<T*>(threads.scratch(id, slot, count * sizeof(T)));
}

constexpr int64_t kNumbersAnItem = 16384;  // enough work to wake a second thread for

/// Calls body(id, row) for every row of `width` numbers, in items large enough to share among threads.
template <class Body>
inline void each_row(ThreadPool& threads, int64_t rows, int64_t width, const Body& body) {
  int64_t step = std::max<int64_t>(1, kNumbersAnItem / std::max<int64_t>(1, width));
  threads.each((rows + step - 1) / step, [&](int id, int64_t item) {
    for (int64_t row = item * step; row < std::min(rows, (item + 1) * step); ++row) body(id, row);
  });
}

}  // namespace tiny_llm::TINY_ISA
