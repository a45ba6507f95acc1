// How large tiles and blocks are on each instruction set: one table, and why.
//
// None of these numbers shows in a result: every sum is added in one order, whatever the tile.
#pragma once

#include "simd.h"

namespace tiny_llm::TINY_ISA {

struct Sizes {
  // Rows of a tile of scores, four sums each: 12 of 16 registers, and 24 of 32, leave room for what is
  // multiplied. Keys that are laid out on the way are in registers too, kWidth of them.
  int attention_rows, few_attention_rows;
  // Rows and vectors of a tile of outputs, which stay in registers while a block's values are added to them.
  int output_rows, output_vectors;
  // Rows of a product's tile, by the kind of number, times two vectors of columns or one block. The sums stay
  // in registers, next to the weights and a number of x. Bytes have two for each: of a scale's numbers and of
  // a group.
  int float_rows, pair_rows, byte_rows;
  // Up to how many rows of x a tile has several groups side by side: one row alone has too few sums to keep
  // the units busy. Of numbers that are not integers, and of those that are.
  int few_rows, few_integer_rows;
  // Rows of one item of attention, which share every block that is read and laid out, and up to how many a
  // block is not laid out first: a few tiles read it faster as it is.
  int64_t query_rows, few_query_rows;
};

constexpr Sizes kSizes =
#if defined(__AVX512F__)
    {.attention_rows = 6,
     .few_attention_rows = 3,
     .output_rows = 6,
     .output_vectors = 4,
     .float_rows = 8,
     .pair_rows = 8,
     .byte_rows = 6,
     .few_rows = 2,
     .few_integer_rows = 2,
     .query_rows = 512,
     .few_query_rows = 12};
#elif defined(__aarch64__)  // not measured: the sums fill the registers, as a NEON core has up to four units
    {.attention_rows = 6,
     .few_attention_rows = 3,
     .output_rows = 6,
     .output_vectors = 4,
     .float_rows = 5,
     .pair_rows = 4,
     .byte_rows = 3,
     .few_rows = 2,
     .few_integer_rows = 2,
     .query_rows = 24,
     .few_query_rows = 24};
#else                       // AVX2 and less: 16 registers
    {.attention_rows = 3,
     .few_attention_rows = 2,
     .output_rows = 6,
     .output_vectors = 2,
     .float_rows = 5,
     .pair_rows = 4,
     .byte_rows = 4,
     .few_rows = 2,
     .few_integer_rows = 1,
     .query_rows = 512,
     .few_query_rows = 12};
#endif

}  // namespace tiny_llm::TINY_ISA
