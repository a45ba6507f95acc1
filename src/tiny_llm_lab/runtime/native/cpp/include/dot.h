// Dot products of numbers that are smaller than a lane, several to each.
#pragma once

#include "simd.h"

namespace tiny_llm::TINY_ISA {

/// sum + a * b for 16-bit integers, two to a lane. None of the sums may pass 31 bits.
inline IntVec dot_pairs(IntVec a, IntVec b, IntVec sum) {
#if defined(__AVX512VNNI__) && TINY_WIDTH == 16
  return reinterpret_cast<IntVec>(_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b));
#elif defined(__AVXVNNI__) && TINY_WIDTH == 8
  return reinterpret_cast<IntVec>(_mm256_dpwssd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b));
#elif defined(__AVX512BW__) && TINY_WIDTH == 16
  return sum + reinterpret_cast<IntVec>(_mm512_madd_epi16((__m512i)a, (__m512i)b));
#elif defined(__AVX2__) && TINY_WIDTH == 8
  return sum + reinterpret_cast<IntVec>(_mm256_madd_epi16((__m256i)a, (__m256i)b));
#elif defined(__aarch64__) && TINY_WIDTH == 4
  int16x8_t left = vreinterpretq_s16_s32(a), right = vreinterpretq_s16_s32(b);
  int32x4_t low = vmull_s16(vget_low_s16(left), vget_low_s16(right));
  return sum + vpaddq_s32(low, vmull_high_s16(left, right));
#else
  // The upper half of a lane comes down by an arithmetic shift, the lower half by two.
  return sum + (a >> 16) * (b >> 16) + (a << 16 >> 16) * (b << 16 >> 16);
#endif
}

/// sum + a * b for bytes, four to a lane: those of a from 0 to 15, those of b from -127 to 127. `whole` makes
/// 32-bit integers of a sum. With kTakesBytes, those of a may be up to 255. AVX2 adds two products in 16
/// bits, and there is room for those of eight vectors: 8 * 2 * 15 * 127 < 2^15.
inline IntVec dot_quads(IntVec a, IntVec b, IntVec sum) {
#if defined(__AVX512VNNI__) && TINY_WIDTH == 16
  return reinterpret_cast<IntVec>(_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b));
#elif defined(__AVXVNNI__) && TINY_WIDTH == 8
  return reinterpret_cast<IntVec>(_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b));
#elif defined(__AVX512BW__) && TINY_WIDTH == 16
  return reinterpret_cast<IntVec>(
      _mm512_add_epi16((__m512i)sum, _mm512_maddubs_epi16((__m512i)a, (__m512i)b)));
#elif defined(__AVX2__) && TINY_WIDTH == 8
  return reinterpret_cast<IntVec>(
      _mm256_add_epi16((__m256i)sum, _mm256_maddubs_epi16((__m256i)a, (__m256i)b)));
#elif defined(__ARM_FEATURE_MATMUL_INT8) && TINY_WIDTH == 4
  return vusdotq_s32(sum, vreinterpretq_u8_s32(a), vreinterpretq_s8_s32(b));
#elif defined(__ARM_FEATURE_DOTPROD) && TINY_WIDTH == 4
  return vdotq_s32(sum, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b));
#elif defined(__aarch64__) && TINY_WIDTH == 4
  int8x16_t left = vreinterpretq_s8_s32(a), right = vreinterpretq_s8_s32(b);
  int16x8_t low = vmull_s8(vget_low_s8(left), vget_low_s8(right)), high = vmull_high_s8(left, right);
  return sum + vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
#else
  for (int shift = 0; shift < 32; shift += 8)
    sum += reinterpret_cast<IntVec>(reinterpret_cast<WordVec>(a) >> shift & 255) * (b << (24 - shift) >> 24);
  return sum;
#endif
}

inline IntVec whole(IntVec sum) {
#if defined(__AVX512BW__) && !defined(__AVX512VNNI__) && TINY_WIDTH == 16
  return reinterpret_cast<IntVec>(_mm512_madd_epi16((__m512i)sum, _mm512_set1_epi16(1)));
#elif defined(__AVX2__) && !defined(__AVXVNNI__) && TINY_WIDTH == 8
  return reinterpret_cast<IntVec>(_mm256_madd_epi16((__m256i)sum, _mm256_set1_epi16(1)));
#else
  return sum;
#endif
}

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_MATMUL_INT8)
constexpr bool kTakesBytes = true;
#elif defined(__AVX2__) || defined(__aarch64__)
constexpr bool kTakesBytes = false;
#else
constexpr bool kTakesBytes = true;
#endif

// Vectors of 16 lanes without AVX-512 are for tests alone: they go the way of the best copy.
#if TINY_WIDTH == 16 && (defined(__AVX512BF16__) || !defined(__AVX512F__))
constexpr bool kHasBfloatDots = true;
#elif TINY_WIDTH == 4 && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
constexpr bool kHasBfloatDots = true;
#else
constexpr bool kHasBfloatDots = false;
#endif

/// sum + a * b for bfloat16 numbers, two to a lane: the products are exact, what is below 2^-126 counts as
/// zero. ARM adds the two products first, and rounds to odd: off by up to a unit in the last place, not half.
inline Vec dot_bfloats(Vec a, Vec b, Vec sum) {
#if defined(__AVX512BF16__) && TINY_WIDTH == 16
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && TINY_WIDTH == 4
  return vbfdotq_f32(sum, vreinterpretq_bf16_f32(a), vreinterpretq_bf16_f32(b));
#else
  sum = fma(as_floats(as_words(a) << 16), as_floats(as_words(b) << 16), sum);
  return fma(as_floats(as_words(a) & 0xffff0000), as_floats(as_words(b) & 0xffff0000), sum);
#endif
}

/// Floats that are bfloat16 numbers, two to a lane: `low` in the lower halves.
inline Vec paired(Vec low, Vec high) {
#if defined(__AVX512BW__) && TINY_WIDTH == 16
  // The upper half of each lane: of the first vector, then of the second.
  IntVec halves = iota() * 0x20002 + 0x210001;
  return reinterpret_cast<Vec>(_mm512_permutex2var_epi16((__m512i)low, (__m512i)halves, (__m512i)high));
#else
  return as_floats(as_words(low) >> 16 | as_words(high));
#endif
}

/// Halves of two vectors in pairs: lane i of out[0] has half i of both, lane i of out[1] half kWidth + i.
inline void interleave(Vec low, Vec high, Vec* out) {
#if defined(__AVX512BW__) && TINY_WIDTH == 16
  auto lanes = [](int first) { return (__m512i)(iota() * 0x10001 + (first + 0x200000 + first * 0x10000)); };
  out[0] = (Vec)_mm512_permutex2var_epi16((__m512i)low, lanes(0), (__m512i)high);
  out[1] = (Vec)_mm512_permutex2var_epi16((__m512i)low, lanes(kWidth), (__m512i)high);
#elif defined(__aarch64__) && TINY_WIDTH == 4
  auto halves = [](Vec v) { return vreinterpretq_u16_f32(v); };
  out[0] = vreinterpretq_f32_u16(vzip1q_u16(halves(low), halves(high)));
  out[1] = vreinterpretq_f32_u16(vzip2q_u16(halves(low), halves(high)));
#else
  uint16_t halves[2][2 * kWidth], pairs[2 * kWidth][2];
  std::memcpy(halves[0], &low, sizeof(low)), std::memcpy(halves[1], &high, sizeof(high));
  for (int i = 0; i < 4 * kWidth; ++i) pairs[i / 2][i % 2] = halves[i % 2][i / 2];
  std::memcpy(out, pairs, sizeof(pairs));
#endif
}

/// Floats rounded to bfloat16: those of `low`, then those of `high`.
inline Vec narrowed(Vec low, Vec high) {
#if defined(__AVX512BF16__) && TINY_WIDTH == 16
  return reinterpret_cast<Vec>(_mm512_cvtne2ps_pbh(high, low));
#else
  bf16 numbers[2 * kWidth];
  store(numbers, low), store(numbers + kWidth, high);
  Vec pairs;
  std::memcpy(&pairs, numbers, sizeof(pairs));
  return pairs;
#endif
}

/// The lowest 4 bits of every half of a lane as bfloat16, which has each of their 16 values.
inline Vec bfloats_of_fields(WordVec words) {
#if defined(__AVX512BW__) && TINY_WIDTH == 16
  // The index has five bits, and the fifth is of the next field: the table is there twice.
  const __m512i table = _mm512_broadcast_i64x4(_mm256_setr_epi16(0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0,
                                                                 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120,
                                                                 0x4130, 0x4140, 0x4150, 0x4160, 0x4170));
  return reinterpret_cast<Vec>(_mm512_permutexvar_epi16(reinterpret_cast<__m512i>(words), table));
#elif defined(__aarch64__) && TINY_WIDTH == 4
  // A table of bytes: the lower halves of the 16 numbers, then the upper ones.
  const uint8x16x2_t table = {
      {{0, 0x80, 0, 0x40, 0x80, 0xa0, 0xc0, 0xe0, 0, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70},
       {0, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41}}};
  uint16x8_t field = vandq_u16(vreinterpretq_u16_u32(words), vdupq_n_u16(15));
  uint16x8_t indices = vmlaq_u16(vdupq_n_u16(0x1000), field, vdupq_n_u16(0x0101));
  return vreinterpretq_f32_u8(vqtbl2q_u8(table, vreinterpretq_u8_u16(indices)));
#else
  Vec low = __builtin_convertvector(reinterpret_cast<IntVec>(words & 15), Vec);
  Vec high = __builtin_convertvector(reinterpret_cast<IntVec>(words >> 16 & 15), Vec);
  return paired(low, high);
#endif
}

}  // namespace tiny_llm::TINY_ISA
