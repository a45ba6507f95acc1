// Transposes a square of lanes: kWidth vectors of rows become kWidth vectors of columns.
#pragma once

#include "simd.h"

namespace tiny_llm::TINY_ISA {

/// Four vectors: within each four lanes, lane i of vector j becomes lane j of vector i.
inline void transpose_fours(WordVec* v) {
  auto low = [](int lane) { return lane / 4 * 4 + lane % 4 / 2 + lane % 2 * kWidth; };
  auto high = [](int lane) { return lane / 4 * 4 + lane % 4 / 2 + lane % 2 * kWidth + 2; };
  auto first = [](int lane) { return lane % 2 == 0 ? lane : lane - 1 + kWidth / 2; };
  auto second = [](int lane) { return lane % 2 == 0 ? lane + 1 : lane + kWidth / 2; };
  PairVec ab[] = {(PairVec)joined(v[0], v[1], low), (PairVec)joined(v[0], v[1], high)};
  PairVec cd[] = {(PairVec)joined(v[2], v[3], low), (PairVec)joined(v[2], v[3], high)};
  for (int i = 0; i < 2; ++i) {
    v[2 * i] = (WordVec)joined(ab[i], cd[i], first);
    v[2 * i + 1] = (WordVec)joined(ab[i], cd[i], second);
  }
}

/// kWidth vectors as a square: lane i of vector j becomes lane j of vector i. Four by four lanes first, then
/// these blocks among each other.
inline void transpose(WordVec* v) {
#pragma GCC unroll 4
  for (int i = 0; i < kWidth; i += 4) transpose_fours(v + i);
  auto low = [](int lane) { return lane < kWidth / 2 ? lane : lane + kWidth / 2; };
  auto high = [](int lane) { return lane < kWidth / 2 ? lane + kWidth / 2 : lane + kWidth; };
  auto even = [](int lane) { return lane / 4 * 8 + lane % 4; };
  auto odd = [](int lane) { return lane / 4 * 8 + lane % 4 + 4; };
#pragma GCC unroll 4
  for (int i = 0; i < 4 && kWidth > 4; ++i) {
    if constexpr (kWidth == 8) {
      WordVec a = v[i], b = v[i + 4];
      v[i] = joined(a, b, low), v[i + 4] = joined(a, b, high);
    } else if constexpr (kWidth == 16) {
      WordVec ab = joined(v[i], v[i + 4], low), more_ab = joined(v[i], v[i + 4], high);
      WordVec cd = joined(v[i + 8], v[i + 12], low), more_cd = joined(v[i + 8], v[i + 12], high);
      v[i] = joined(ab, cd, even), v[i + 4] = joined(ab, cd, odd);
      v[i + 8] = joined(more_ab, more_cd, even), v[i + 12] = joined(more_ab, more_cd, odd);
    }
  }
}

/// kWidth / 4 vectors: quad i of vector j, which is four lanes, becomes quad j of vector i.
inline void transpose_quads(const Vec* v, Vec* out) {
  if constexpr (kWidth == 4) {
    out[0] = v[0];
  } else if constexpr (kWidth == 8) {
    out[0] = joined(v[0], v[1], [](int i) { return i < 4 ? i : i + 4; });
    out[1] = joined(v[0], v[1], [](int i) { return i < 4 ? i + 4 : i + 8; });
  } else {
    auto low = [](int i) { return i < 8 ? i : i + 8; };
    auto high = [](int i) { return i < 8 ? i + 8 : i + 16; };
    auto even = [](int i) { return i / 4 * 8 + i % 4; };
    auto odd = [](int i) { return i / 4 * 8 + i % 4 + 4; };
    Vec ab = joined(v[0], v[1], low), more_ab = joined(v[0], v[1], high);
    Vec cd = joined(v[2], v[3], low), more_cd = joined(v[2], v[3], high);
    out[0] = joined(ab, cd, even), out[1] = joined(ab, cd, odd);
    out[2] = joined(more_ab, more_cd, even), out[3] = joined(more_ab, more_cd, odd);
  }
}

}  // namespace tiny_llm::TINY_ISA
