// A matrix's rows in the order that products read them.
#pragma once

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

/// Rows [..., O, n] in blocks: [..., P / 16, n, 16], where P is O rounded up to 64 and the rows from O on are
/// zeros. The array begins at a cache line, which MLX's own need not.
inline Array in_blocks(const Array& rows) {
  require(rows.ndim() >= 2 && (rows.itemsize() == 2 || rows.itemsize() == 4),
          "blocks are made of rows [..., O, n] of 16 or 32 bits");
  Array whole = mx::contiguous(rows, false, mx::Device::cpu);
  whole.eval();
  int count = rows.shape(-2), n = rows.shape(-1), padded = in_padded_rows(count);
  mx::Shape shape(rows.shape().begin(), rows.shape().end() - 2);
  int64_t many = 1;
  for (int dim : shape) many *= dim;
  shape.insert(shape.end(), {padded / kBlockColumns, n, kBlockColumns});
  int64_t size = many * padded * n, line = 64 / rows.itemsize();
  require(size + line <= INT32_MAX, "a matrix of ", size, " words is too large to be stored in blocks");
  Array room = mx::zeros({static_cast<int>(size + line)}, rows.dtype(), mx::Device::cpu);
  room.eval();
  uintptr_t start = reinterpret_cast<uintptr_t>(room.data<char>()), shift = -start % 64 / rows.itemsize();
  Array part = mx::slice(room, {static_cast<int>(shift)}, {static_cast<int>(shift + size)}, mx::Device::cpu);
  Array out = mx::reshape(part, shape, mx::Device::cpu);
  out.eval();
  for (int64_t i = 0; i < many; ++i) {
    int64_t from = i * count * n, to = i * padded * n;
    if (rows.itemsize() == 4)
      write_blocks(whole.data<uint32_t>() + from, count, n, out.data<uint32_t>() + to);
    else
      write_blocks(whole.data<uint16_t>() + from, count, n, out.data<uint16_t>() + to);
  }
  return out;
}

}  // namespace tiny_llm
