// A matrix's rows in the order that products read them.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "checks.h"
#include "kernels.h"

namespace tiny_llm {

/// Writes `count` rows of n elements as blocks of 16 rows: element k of all 16 rows, then element k + 1.
template <class T>
void write_blocks(const T* rows, int64_t count, int64_t n, T* out) {
  constexpr int64_t kBlock = kBlockColumns;
  for (int64_t first = 0; first < count; first += kBlock, rows += kBlock * n, out += kBlock * n)
    for (int64_t k = 0; k < n; k += kBlock) {
      // Rows a power of two apart share few lines of the cache, so each piece of a row is read at once.
      T square[kBlock][kBlock] = {};
      int64_t width = std::min(kBlock, n - k);
      for (int64_t row = 0; row < std::min(kBlock, count - first); ++row)
        std::memcpy(square[row], rows + row * n + k, width * sizeof(T));
      for (int64_t i = 0; i < width; ++i)
        for (int64_t row = 0; row < kBlock; ++row) out[(k + i) * kBlock + row] = square[row][i];
    }
}

/// Memory of `lines` lines of 64 bytes, from a line on, which MLX's own arrays need not begin at. The system
/// is asked for large pages before anything is written: a decode reads a whole model, and looks up each page.
inline Array lines_of_memory(int64_t lines) {
  require(lines < INT32_MAX / 16, "matrices of ", lines, " lines are too large to be stored in blocks");
  int64_t bytes = (lines + 1) * 64;
  Array room(mx::allocator::malloc(bytes), {static_cast<int>(bytes / 4)}, mx::uint32);
  auto start = reinterpret_cast<uintptr_t>(room.data<char>());
#ifdef MADV_HUGEPAGE
  uintptr_t page = sysconf(_SC_PAGESIZE), first = (start + page - 1) / page * page;
  uintptr_t end = (start + bytes) / page * page;
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
  int shift = static_cast<int>(-start % 64 / 4), words = static_cast<int>(lines * 16);
  return mx::slice(room, {shift}, {shift + words}, mx::Device::cpu);
}

/// Where a matrix [..., O, n] is in memory: [..., P / 16, n, 16], where P is O rounded up to 64.
struct BlockShape {
  int64_t many = 1, count, n, padded, lines;
  mx::Shape shape;

  explicit BlockShape(const Array& rows) {
    require(rows.ndim() >= 2 && (rows.itemsize() == 2 || rows.itemsize() == 4),
            "blocks are made of rows [..., O, n] of 16 or 32 bits");
    count = rows.shape(-2), n = rows.shape(-1), padded = in_padded_rows(rows.shape(-2));
    shape = mx::Shape(rows.shape().begin(), rows.shape().end() - 2);
    for (int dim : shape) many *= dim;
    shape.insert(shape.end(), {static_cast<int>(padded / kBlockColumns), rows.shape(-1), kBlockColumns});
    lines = many * padded * n * static_cast<int64_t>(rows.itemsize()) / 64;
  }

  template <class T>
  void write(const T* rows, T* out) const {
    for (int64_t i = 0; i < many; ++i, rows += count * n, out += padded * n) {
      write_blocks(rows, count, n, out);
      int64_t written = (count + kBlockColumns - 1) / kBlockColumns * kBlockColumns;
      std::fill(out + written * n, out + padded * n, T{});
    }
  }
};

/// Matrices [..., O, n] in blocks, all in one piece of memory. Rows from O on are zeros.
inline std::vector<Array> in_blocks(const std::vector<Array>& matrices) {
  std::vector<BlockShape> shapes(matrices.begin(), matrices.end());
  int64_t lines = 0;
  for (const BlockShape& blocks : shapes) lines += blocks.lines;
  Array room = lines_of_memory(lines);
  std::vector<Array> made;
  for (int i = 0, first = 0, end; i < static_cast<int>(matrices.size()); ++i, first = end) {
    const Array& rows = matrices[i];
    const BlockShape& blocks = shapes[i];
    end = first + static_cast<int>(blocks.lines * 16);
    Array part = mx::slice(room, {first}, {end}, mx::Device::cpu);
    Array out = mx::reshape(mx::view(part, rows.dtype(), mx::Device::cpu), blocks.shape, mx::Device::cpu);
    Array whole = mx::contiguous(rows, false, mx::Device::cpu);
    mx::eval(out, whole);
    if (rows.itemsize() == 4)
      blocks.write(whole.data<uint32_t>(), out.data<uint32_t>());
    else
      blocks.write(whole.data<uint16_t>(), out.data<uint16_t>());
    made.push_back(out);
  }
  return made;
}

}  // namespace tiny_llm
