// Vectors of floats that look the same on every instruction set.
//
// A kernel is written once, in terms of `Vec`. The build compiles it once per instruction set and says how
// wide a vector is (TINY_WIDTH) and in which namespace the copy lives (TINY_ISA). GCC's and Clang's vector
// extensions do the rest: `a + b` on two Vec is one instruction wherever there is one.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "tensor.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace tiny_llm::TINY_ISA {

constexpr int kWidth = TINY_WIDTH;

// may_alias and an alignment of one element: a Vec may be read from anywhere, like the floats it is made of.
typedef float Vec __attribute__((vector_size(4 * TINY_WIDTH)));
typedef float LooseVec __attribute__((vector_size(4 * TINY_WIDTH), aligned(4), may_alias));
typedef int32_t IntVec __attribute__((vector_size(4 * TINY_WIDTH)));
typedef uint32_t WordVec __attribute__((vector_size(4 * TINY_WIDTH)));
typedef uint32_t LooseWordVec __attribute__((vector_size(4 * TINY_WIDTH), aligned(4), may_alias));
// 64-bit lanes: GCC finds the instruction that interleaves two vectors only by the lanes' own width.
typedef uint64_t PairVec __attribute__((vector_size(4 * TINY_WIDTH)));
typedef uint16_t HalfVec __attribute__((vector_size(2 * TINY_WIDTH)));
typedef uint16_t LooseHalfVec __attribute__((vector_size(2 * TINY_WIDTH), aligned(2), may_alias));
typedef int32_t LooseIntVec __attribute__((vector_size(4 * TINY_WIDTH), aligned(4), may_alias));
typedef int8_t LooseByteVec __attribute__((vector_size(TINY_WIDTH), aligned(1), may_alias));

inline Vec as_floats(WordVec bits) { return reinterpret_cast<Vec>(bits); }
inline WordVec as_words(Vec v) { return reinterpret_cast<WordVec>(v); }

inline IntVec as_ints(Vec v) { return reinterpret_cast<IntVec>(v); }

inline Vec set(float x) { return x - Vec{}; }
inline Vec load(const float* p) { return *reinterpret_cast<const LooseVec*>(p); }
inline WordVec load(const uint32_t* p) { return *reinterpret_cast<const LooseWordVec*>(p); }
/// A word in every lane.
inline WordVec every(const uint32_t* p) { return WordVec{} + *p; }
inline void store(float* p, Vec v) { *reinterpret_cast<LooseVec*>(p) = v; }
inline void store(int32_t* p, IntVec v) { *reinterpret_cast<LooseIntVec*>(p) = v; }
/// The lowest byte of every lane. GCC 12 would go by way of 16 bits.
inline void store(int8_t* p, IntVec v) {
#if defined(__AVX512F__) && TINY_WIDTH == 16
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(v)));
#else
  *reinterpret_cast<LooseByteVec*>(p) = __builtin_convertvector(v, LooseByteVec);
#endif
}

/// a * b + c, rounded once where the machine can.
inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(TINY_PLAIN)
  return a * b + c;
#elif defined(__AVX512F__) && TINY_WIDTH == 16
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__) && TINY_WIDTH == 8
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__) && TINY_WIDTH == 4
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

inline Vec max(Vec a, Vec b) { return a > b ? a : b; }

// 16-bit floats are computed on as 32-bit ones. bfloat16 is the upper half of a float32.
inline WordVec load_halves(const void* p) {
#if defined(__AVX2__) && TINY_WIDTH == 8  // GCC 12 takes four instructions where there is one
  return reinterpret_cast<WordVec>(_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
#elif defined(__AVX512F__) && TINY_WIDTH == 16  // and three: two halves, and their union
  return reinterpret_cast<WordVec>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p))));
#else
  return __builtin_convertvector(*static_cast<const LooseHalfVec*>(p), WordVec);
#endif
}

/// The lower half of every lane. GCC 12 splits a vector of 16 lanes, and joins the halves again.
inline void store_halves(void* p, WordVec words) {
#if defined(__AVX512F__) && TINY_WIDTH == 16
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(words)));
#else
  *static_cast<LooseHalfVec*>(p) = __builtin_convertvector(words, HalfVec);
#endif
}

/// Whole numbers of 8 bits as floats. Left alone, GCC 12 converts one number at a time.
inline Vec load(const int8_t* p) {
#if defined(__AVX512F__) && TINY_WIDTH == 16
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(__AVX2__) && TINY_WIDTH == 8
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  return __builtin_convertvector(__builtin_convertvector(*reinterpret_cast<const LooseByteVec*>(p), IntVec),
                                 Vec);
#endif
}

inline Vec load(const bf16* p) { return as_floats(load_halves(p) << 16); }

inline void store(bf16* p, Vec v) {
  WordVec bits = as_words(v);
  WordVec rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  // Rounding up could turn the largest NaN into a zero: NaN keeps its upper bits and becomes quiet.
  WordVec kept = (bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded;
  store_halves(p, kept);
}

/// float16 numbers, each in the lower half of its lane. They have 5 bits of exponent: multiplying by 2^112
/// moves them into place, subnormal numbers included.
inline Vec floats_of_f16(WordVec bits) {
  WordVec magnitude = (bits & 0x7fff) << 13;
  WordVec scaled = as_words(as_floats(magnitude) * set(0x1p112f));
  WordVec special = scaled | 0x7f800000;
  return as_floats((magnitude >= 0x0f800000 ? special : scaled) | (bits & 0x8000) << 16);
}

inline Vec load(const f16* p) { return floats_of_f16(load_halves(p)); }

inline void store(f16* p, Vec v) {
  WordVec sign = as_words(v) & 0x80000000;
  WordVec bits = as_words(v) ^ sign;
  WordVec normal = (bits - 0x38000000 + 0xfff + ((bits >> 13) & 1)) >> 13;
  // Adding 0.5 lets the FPU round what is below float16's normal range to multiples of 2^-24.
  WordVec small = as_words(as_floats(bits) + set(0.5f)) - 0x3f000000;
  WordVec large = bits > 0x7f800000 ? WordVec{} + 0x7e00 : WordVec{} + 0x7c00;
  WordVec half = bits < 0x38800000 ? small : (bits >= 0x477ff000 ? large : normal);
  store_halves(p, half | sign >> 16);
}

/// Have this value in a register here. Left alone, GCC puts off the additions of an unrolled loop until all
/// of its products are known, and these do not fit into the registers.
template <class V>
inline void pin(V& v) {
#if defined(__AVX512F__)
  constexpr int kBytes = 64;
#elif defined(__AVX__)
  constexpr int kBytes = 32;
#else
  constexpr int kBytes = 16;
#endif
  if constexpr (sizeof(V) <= kBytes) {
#if defined(__x86_64__)
    asm("" : "+v"(v));
#elif defined(__aarch64__)
    asm("" : "+w"(v));
#endif
  }
}

/// Lane numbers 0, 1, 2, ...
inline IntVec iota() {
  IntVec lanes;
  for (int i = 0; i < kWidth; ++i) lanes[i] = i;
  return lanes;
}

/// Lane i becomes lane index(i) of a, or of b where index(i) counts on. `index` captures nothing.
template <class V, class Index>
inline V joined(V a, V b, Index) {
  return [&]<int... i>(std::integer_sequence<int, i...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, Index{}(i)...);
#else
    using Numbers = std::conditional_t<sizeof(a[0]) == 8, PairVec, WordVec>;
    return __builtin_shuffle(a, b, Numbers{static_cast<decltype(Numbers{}[0] + 0)>(Index{}(i))...});
#endif
  }(std::make_integer_sequence<int, sizeof(V) / sizeof(a[0])>());
}

template <class V, class Index>
inline V arranged(V v, Index index) {
  return joined(v, v, index);
}

/// Lane i becomes lane i ^ kStep.
template <int kStep>
inline Vec exchanged(Vec v) {
  return arranged(v, [](int i) { return i ^ kStep; });
}

/// All lanes joined into one, neighbours first: the same order in every kernel.
template <int kStep = 1, class Join>
inline float fold(Vec v, const Join& join) {
  if constexpr (kStep < kWidth)
    return fold<2 * kStep>(join(v, exchanged<kStep>(v)), join);
  else
    return v[0];
}

inline float sum(Vec v) {
  return fold(v, [](Vec a, Vec b) { return a + b; });
}

inline float highest(Vec v) {
  return fold(v, [](Vec a, Vec b) { return max(a, b); });
}

/// Whether any lane is larger than `least`.
inline bool any_above(Vec v, float least) {
#if defined(__AVX512F__) && TINY_WIDTH == 16
  return _mm512_cmp_ps_mask(v, set(least), _CMP_GT_OQ) != 0;
#elif defined(__AVX2__) && TINY_WIDTH == 8
  return _mm256_movemask_ps(_mm256_cmp_ps(v, set(least), _CMP_GT_OQ)) != 0;
#elif defined(__aarch64__) && TINY_WIDTH == 4
  return vmaxvq_u32(vcgtq_f32(v, set(least))) != 0;
#else
  bool is_above = false;
  for (int i = 0; i < kWidth; ++i) is_above |= v[i] > least;
  return is_above;
#endif
}

/// Sums of neighbouring lanes: of each quad of four lanes, two of a and two of b.
inline Vec neighbours_added(Vec a, Vec b) {
#if defined(__AVX2__) && TINY_WIDTH == 8
  return _mm256_hadd_ps(a, b);
#elif defined(__AVX512F__) && TINY_WIDTH == 16
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
#elif defined(__aarch64__) && TINY_WIDTH == 4
  return vpaddq_f32(a, b);
#else
  auto lane = [](int i) { return i / 4 * 4 + i % 2 * 2 + i % 4 / 2 * kWidth; };
  auto next = [](int i) { return i / 4 * 4 + i % 2 * 2 + i % 4 / 2 * kWidth + 1; };
  return joined(a, b, lane) + joined(a, b, next);
#endif
}

/// The four numbers from p on in every quad of lanes.
inline Vec every_quad(const float* p) {
#if defined(__AVX512F__) && TINY_WIDTH == 16
  return _mm512_broadcast_f32x4(_mm_loadu_ps(p));
#elif defined(__AVX2__) && TINY_WIDTH == 8
  return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(p));
#else
  Vec v;
  for (int i = 0; i < kWidth; i += 4) std::memcpy(reinterpret_cast<char*>(&v) + 4 * i, p, 16);
  return v;
#endif
}

/// The first `count` lanes of p and zeros: how the end of a row is read without what lies behind it.
template <class T>
inline auto load_part(const T* p, int64_t count) {
  T padded[kWidth] = {};
  std::memcpy(padded, p, count * sizeof(T));
  return load(padded);
}

template <class T>
inline void store_part(T* p, Vec v, int64_t count) {
  T padded[kWidth];
  store(padded, v);
  std::memcpy(p, padded, count * sizeof(T));
}

}  // namespace tiny_llm::TINY_ISA
