// How large tiles and blocks are on each instruction set: one table, and why.
//
// None of these numbers shows in a result: every sum is added in one order, whatever the tile.
#pragma once

#include "simd.h"

namespace tiny_llm::TINY_ISA {

constexpr int kTileColumns = 4;  // of every tile, as `sum4` adds up four sums at a time

struct Sizes {
  // Rows of a tile of attention. It has nothing but kTileColumns sums a row, which stay in registers: 12 of
  // 16, and 24 of 32, leave room for what is multiplied.
  int attention_rows;
  // Rows of a product's tile, by the kind of number. Each sum is two: the part of a span, and the total of
  // all. 16 registers hold the parts, 12 of floats, but 8 of integers, whose products need a register of
  // their own before they are added; the totals wait in memory. 32 registers hold both of 3 rows.
  int float_rows, pair_rows;
  // A tile of bytes: rows, times vectors of columns. Of 32 registers, parts and a group's sums take
  // 24; of 16 they take all, and some wait in memory, which was faster than fewer of them.
  int byte_rows, byte_vectors;
  // Totals of a product of few rows, of up to four rows and four columns. With the parts of two columns four
  // rows take three quarters of 32 registers, or all of 16.
  int few_sums;
  // Rows of x that share a panel of a product. Wide vectors multiply faster, but decode no faster: more rows
  // use what was decoded.
  int64_t block_rows;
  // Rows of one item of attention, which share every decoded block, and up to how many the blocks are not
  // decoded first: a few tiles read them faster as they are.
  int64_t query_rows, few_query_rows;
};

constexpr Sizes kSizes =
#if defined(__AVX512F__)
    {.attention_rows = 6,
     .float_rows = 3,
     .pair_rows = 3,
     .byte_rows = 6,
     .byte_vectors = 2,
     .few_sums = 16,
     .block_rows = 96,
     .query_rows = 96,
     .few_query_rows = 24};
#elif defined(__aarch64__)  // not measured: the parts fill the registers, as a NEON core has up to four units
    {.attention_rows = 6,
     .float_rows = 6,
     .pair_rows = 5,
     .byte_rows = 6,
     .byte_vectors = 2,
     .few_sums = 8,
     .block_rows = 48,
     .query_rows = 24,
     .few_query_rows = 24};
#else                       // AVX2 and less: 16 registers
    {.attention_rows = 3,
     .float_rows = 3,
     .pair_rows = 2,
     .byte_rows = 4,
     .byte_vectors = 2,
     .few_sums = 8,
     .block_rows = 48,
     .query_rows = 48,
     .few_query_rows = 12};
#endif

}  // namespace tiny_llm::TINY_ISA
