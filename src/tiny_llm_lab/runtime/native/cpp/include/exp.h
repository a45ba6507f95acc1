// e to the power of every lane.
#pragma once

#include "simd.h"

namespace tiny_llm::TINY_ISA {

/// e^x to about one unit in the last place; 0 below -87, where float32's normal numbers end, and infinity
/// above 88.3, where 2^128 is the power; NaN stays NaN.
inline Vec exp(Vec x) {
  Vec clamped = max(set(-87.0f), x > set(89.0f) ? set(89.0f) : x);
  // Adding 1.5 * 2^23 rounds to a whole number, which then stands in the lowest bits.
  Vec shifted = fma(clamped, set(1.44269504f), set(12582912.0f));
  Vec whole = shifted - set(12582912.0f);
  Vec rest = fma(whole, set(-1.42860677e-6f), fma(whole, set(-0.693145752f), clamped));
  Vec poly = set(1.98756915e-4f);  // minimax on [-ln 2 / 2, ln 2 / 2] (Cephes, expf)
  for (float c : {1.39819995e-3f, 8.33345191e-3f, 4.16657959e-2f, 1.66666655e-1f, 5.00000012e-1f})
    poly = fma(poly, rest, set(c));
  Vec mantissa = fma(poly, rest * rest, rest + set(1.0f));
  Vec power = as_floats((as_words(shifted) << 23) + 0x3f800000);
  return x < set(-87.0f) ? Vec{} : mantissa * power;
}

/// e^x for x <= 0 in half the instructions: off by up to 2^-24 (of 1, not of the result), and 0 below -87;
/// NaN stays NaN.
inline Vec exp_of_negative(Vec x) {
  Vec power = x * set(1.44269504f);
  Vec shifted = power + set(12582912.0f);
  Vec rest = power - (shifted - set(12582912.0f));
  Vec poly = set(1.33952e-3f);  // minimax of 2^rest on [-1/2, 1/2]
  for (float c : {9.6184373e-3f, 5.5503324e-2f, 2.4022648e-1f, 6.9314718e-1f, 1.0f})
    poly = fma(poly, rest, set(c));
  return x < set(-87.0f) ? Vec{} : as_floats(as_words(poly) + (as_words(shifted) << 23));
}

}  // namespace tiny_llm::TINY_ISA
