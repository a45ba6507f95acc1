// Products of packed weights and bytes: how x is rounded, and a tile of the product.
#pragma once

#include "bytes.h"

namespace tiny_llm::TINY_ISA {

/// Rounds x [count] times 1 / scale to whole numbers from -127 to 127, half to even. Returns the scale,
/// max |x| / 127. `bytes` gets the numbers in the order of `byte_at`, and x what they stand for, number *
/// scale. `count` is a multiple of 8 and of kWidth. A scale below the smallest normal float makes all zeros.
inline float to_bytes(float* x, int count, int8_t* bytes) {
  // BEGIN task 2.3.5
  throw std::runtime_error("task 2.3.5");
  // END task 2.3.5
}

/// What a tile multiplies: `groups` groups of M rows of x and of N vectors of columns.
struct ByteBlock {
  const uint32_t* words;  // of x; row m begins m * `stride` further
  int64_t stride;
  const float *x_scales, *sums;  // of x, by group; row m begins m * `x_groups` groups further
  int64_t x_groups;
  const WordVec* panel;        // [words, N]
  const Vec *scales, *biases;  // [groups, N]
  int64_t groups;
};

/// Adds the products of a block to totals [M, N], group by group: scale * (the sum over the kActs parts of a
/// group of x's scale * sum(weight * byte)) + bias * sum(x). Format is a PackedBytes.
template <class Format, int M, int N>
[[gnu::noinline]] void multiply_bytes(ByteBlock block, Vec* totals) {
  // BEGIN task 2.3.5
  throw std::runtime_error("task 2.3.5");
  // END task 2.3.5
}

}  // namespace tiny_llm::TINY_ISA
