// A tile of a product: some rows of x times vectors of columns.
#pragma once

#include "columns.h"

namespace tiny_llm::TINY_ISA {

/// What a tile multiplies: `groups` groups of M rows of x and of N vectors of columns.
struct TileInput {
  const uint32_t* words;  // of x, one for each vector of a unit; row m begins m * `stride` further
  int64_t stride;
  const float *x_scales, *sums;  // of x, by group; row m begins m * `x_groups` groups further
  int64_t x_groups;
  // [blocks, panel_stride]: word i of a block is kBlockVectors vectors, which may begin at any address.
  const WordVec* panel;
  int64_t panel_stride;
  const Vec *scales, *biases;  // [blocks, x_groups * kBlockVectors]
  int64_t groups;
  int64_t ahead;  // bytes from the panel to what is prefetched, in order; 0: nothing is
};

/// Adds the products to totals [M, N], group by group: scale * (the sum over the kActs parts of a group of
/// x's scale * sum(weight * x)) + bias * sum(x). What has no scales has neither scales nor biases. G groups
/// are multiplied side by side, and added in their order. Returns the input of the last in.groups % G groups,
/// which it leaves. Format is a Packed or a Dense.
template <class Format, int M, int N, int G>
[[gnu::noinline]] TileInput multiply(TileInput in, Vec* totals) {
  // BEGIN task 2.3.3
  throw std::runtime_error("task 2.3.3");
  // END task 2.3.3
}

}  // namespace tiny_llm::TINY_ISA
