// A tile of a product by the matrix registers of x86 (AMX): 16 rows of x times vectors of columns.
//
// A decoded vector, a column in each lane, is a line of the register that such an instruction multiplies, and
// the words of a row of x are a line of the other one: both are laid out already.
#pragma once

#include <algorithm>

#include "columns.h"

namespace tiny_llm::TINY_ISA {

/// Whether matrix registers multiply a Format: bytes, and bfloat16.
template <class Format>
constexpr bool kHasTiles =
#if defined(__AMX_TILE__) && TINY_WIDTH == 16
    sizeof(typename Format::Element) < 4 && !std::is_same_v<typename Format::Element, int16_t>;
#else
    false;
#endif

constexpr int kTileHeight = 16;

/// Adds the products of `rows` rows to totals [rows, N], as `multiply` does for a few: `rows` is below
/// kTileHeight or a multiple of it. Sums of bytes are exact, so both give the same bits. The
/// instruction for bfloat16 adds in another order. `in` is a TileInput.
template <class Format, int N, class Input>
[[gnu::noinline]] void multiply_in_registers(Input in, int64_t rows, Vec* totals);

#if defined(__AMX_TILE__) && TINY_WIDTH == 16
/// What was stored is in memory by now: GCC 12 does not know what _tile_loadconfig and _tile_loadd read.
inline void keep_in_memory(const void* data) { asm volatile("" ::"r"(data) : "memory"); }

/// Shapes of the registers: 0 and 1 have sums, 2 rows of x, 3 and 4 weights, `depth` vectors of them.
inline void shape_tiles(int64_t rows, int depth) {
  struct alignas(64) {
    uint8_t palette = 1, start = 0, zeros[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64};
    uint8_t rows[16] = {};
  } shapes;
  for (int sums_or_x = 0; sums_or_x < 3; ++sums_or_x) shapes.rows[sums_or_x] = static_cast<uint8_t>(rows);
  shapes.bytes[2] = static_cast<uint16_t>(4 * depth);
  shapes.rows[3] = shapes.rows[4] = static_cast<uint8_t>(depth);
  keep_in_memory(&shapes);
  _tile_loadconfig(&shapes);
}

template <class Format, int N, class Input>
void multiply_in_registers(Input in, int64_t rows, Vec* totals) {
  using Arithmetic = typename Format::Arithmetic;
  static_assert(kBlockVectors == 1 && N <= 2);
  constexpr bool kIsByte = Arithmetic::kIsInteger;
  constexpr int kVectors = Format::kGroup / Format::kPerLane;
  constexpr int kDepth = kIsByte ? kVectors / Format::kActs : 16;  // vectors that an instruction multiplies
  int64_t height = std::min<int64_t>(rows, kTileHeight);
  shape_tiles(height, kDepth);
  const char* next = reinterpret_cast<const char*>(in.panel) + in.ahead;
  for (; in.groups > 0; --in.groups) {
    alignas(64) Vec weights[N][kVectors];
    for (int unit = 0; unit < kVectors / Format::kVectors; ++unit, in.panel += Format::kWords)
      for (int n = 0; n < N; ++n) {
        WordVec words[Format::kWords];
        std::memcpy(words, reinterpret_cast<const char*>(in.panel + n * in.panel_stride), sizeof(words));
        if (in.ahead != 0)
          for (int w = 0; w < Format::kWords; ++w, next += sizeof(WordVec)) __builtin_prefetch(next, 0, 2);
#pragma GCC unroll 8
        for (int j = 0; j < Format::kVectors; ++j)
          weights[n][unit * Format::kVectors + j] = Format::vector(words, j);
      }
    keep_in_memory(weights);
    for (int64_t m = 0; m < rows; m += height) {
      alignas(64) typename Arithmetic::Part sums[Format::kActs][N][kTileHeight];
#pragma GCC unroll 4
      for (int step = 0; step < kVectors / kDepth; ++step) {
        bool is_last = kIsByte || (step + 1) * kDepth == kVectors;
        if (kIsByte || step == 0) {
          _tile_zero(0);
          _tile_zero(1);
        }
        _tile_loadd(2, in.words + m * in.stride + step * kDepth, in.stride * 4);
        _tile_loadd(3, weights[0] + step * kDepth, 64);
        if constexpr (kIsByte)
          _tile_dpbsud(0, 2, 3);
        else
          _tile_dpbf16ps(0, 2, 3);
        if (is_last) _tile_stored(0, sums[kIsByte ? step : 0][0], 64);
        if constexpr (N == 1) continue;
        _tile_loadd(4, weights[N - 1] + step * kDepth, 64);
        if constexpr (kIsByte)
          _tile_dpbsud(1, 2, 4);
        else
          _tile_dpbf16ps(1, 2, 4);
        if (is_last) _tile_stored(1, sums[kIsByte ? step : 0][N - 1], 64);
      }
      for (int64_t i = 0; i < height; ++i) {
        int64_t of_x = (m + i) * in.x_groups;
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) {
          Vec sum{}, &total = totals[(m + i) * N + n];
#pragma GCC unroll 4
          for (int act = 0; act < Format::kActs; ++act) {
            Vec value = Arithmetic::value(sums[act][n][i]);
            if constexpr (kIsByte) {
              Vec scale = set(in.x_scales[of_x * Format::kActs + act]);
              sum = act == 0 ? value * scale : fma(value, scale, sum);
            } else {
              sum = value;
            }
          }
          if constexpr (Format::kHasScales) {
            total = fma(set(in.sums[of_x]), in.biases[n * in.x_groups], total);
            total = fma(sum, in.scales[n * in.x_groups], total);
          } else {
            total += sum;
          }
        }
      }
    }
    in.words += kVectors, in.x_scales += Format::kActs, ++in.sums, ++in.scales, ++in.biases;
  }
  _tile_release();
}
#endif

}  // namespace tiny_llm::TINY_ISA
