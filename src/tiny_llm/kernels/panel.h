// Blocks of a matrix with columns in lanes.
#pragma once

#include "columns.h"
#include "transpose.h"

namespace tiny_llm::TINY_ISA {

constexpr int64_t kPanelWords = 256;  // of a block: a part of the first cache

/// Writes words `first` to `first + count - 1` of kBlockColumns rows, from `row` on, into panel
/// [count, kBlockColumns]: lane i of a word is row i. `count` is rounded up to kWidth. On the way it
/// prefetches the same words of the next `rows_ahead` rows.
inline void fill_panel(const RowBytes& rows, int64_t row, int64_t first, int64_t count, int64_t rows_ahead,
                       WordVec* panel) {
  // BEGIN task 2.3.4
  throw std::runtime_error("task 2.3.4");
  // END task 2.3.4
}

/// The scales or biases of `blocks` blocks of columns from `first` on as floats, [blocks, groups,
/// kBlockColumns].
inline void lay_out_groups(const Matrix& w, const void* data, int64_t first, int blocks, Vec* out) {
  int64_t groups = w.columns / w.group_size;
  if (w.in_blocks) {
    int64_t count = blocks * groups * kBlockColumns;
    return widen(data, w.dtype, first * groups, count, count, reinterpret_cast<float*>(out));
  }
  int64_t step = w.dtype == DType::f32 ? 1 : 2;  // numbers of a word
  int64_t bytes = groups * 4 / step;             // of a row
  RowBytes rows{static_cast<const char*>(data) + first * bytes, bytes, w.rows - first, false};
  WordVec words[(kPanelWords + kWidth) * kBlockVectors];
  for (int block = 0; block < blocks; ++block, out += groups * kBlockVectors)
    for (int64_t g = 0; g < groups; g += kPanelWords * step) {
      int64_t count = std::min(kPanelWords * step, groups - g);
      fill_panel(rows, block * kBlockColumns, g / step, (count + step - 1) / step, kBlockColumns * blocks,
                 words);
      for (int64_t i = 0; i < count * kBlockVectors; ++i) {
        int64_t number = i / kBlockVectors;
        out[g * kBlockVectors + i] =
            number_of(words[number / step * kBlockVectors + i % kBlockVectors], w.dtype, number % step);
      }
    }
}

}  // namespace tiny_llm::TINY_ISA
