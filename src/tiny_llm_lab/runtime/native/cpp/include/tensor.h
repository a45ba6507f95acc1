// What a kernel is given: pointers, shapes and strides. Nothing here knows MLX.
#pragma once

#include <cstdint>
#include <stdexcept>

namespace tiny_llm {

struct bf16 {
  uint16_t bits;
};

struct f16 {
  uint16_t bits;
};

enum class DType : int { f32, f16, bf16, u32, i32, i8 };

/// An array of up to four dimensions; strides count elements.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  int ndim = 0;
  int64_t shape[4] = {};
  int64_t stride[4] = {};
  // Of i8, which then lies in one piece: a factor for every row of the last dimension, in the same order.
  const float* scales = nullptr;

  int64_t size() const {
    int64_t n = 1;
    for (int i = 0; i < ndim; ++i) n *= shape[i];
    return n;
  }
};

/// Call f with a null pointer to the C++ type of a float dtype: `visit(t.dtype, [&](auto* type) { ... })`.
template <class Function>
inline void visit(DType dtype, Function&& f) {
  switch (dtype) {
    case DType::f32: return f(static_cast<float*>(nullptr));
    case DType::f16: return f(static_cast<f16*>(nullptr));
    case DType::bf16: return f(static_cast<bf16*>(nullptr));
    default: throw std::invalid_argument("a kernel takes float32, float16 or bfloat16");
  }
}

}  // namespace tiny_llm
