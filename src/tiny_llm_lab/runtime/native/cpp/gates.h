// The gate of a feed-forward and that of attention as operators.
#pragma once

#include "operands.h"

namespace tiny_llm {

/// gate / (1 + e^-gate) * up, elementwise.
inline Array swiglu_of_rows(const Kernels* table, const Array& gate, const Array& up) {
  require_rows(gate, "the gate");
  require_alike(gate, up, "gate and up");
  auto body = [table](ThreadPool& threads, const auto& in, const auto& out) {
    table->swiglu(threads, as_rows(in[0]), as_rows(in[1]), as_rows(out[0]));
  };
  return make_operator("swiglu", {evenly_spaced(gate), evenly_spaced(up)}, {gate.shape()}, {gate.dtype()},
                       body, {3 * bytes_of(gate), 0})[0];
}

/// x / (1 + e^-gate), elementwise, or with one number of `gate` for a row of x.
inline Array gate_of_rows(const Kernels* table, const Array& x, const Array& gate) {
  require_rows(x, "x");
  require_rows(gate, "the gate");
  require(num_rows(gate) == num_rows(x) && (gate.shape(-1) == x.shape(-1) || gate.shape(-1) == 1),
          "the gate must be like x, or a number a row, not ", gate.shape());
  auto body = [table](ThreadPool& threads, const auto& in, const auto& out) {
    table->sigmoid_gate(threads, as_rows(in[0]), as_rows(in[1]), as_rows(out[0]));
  };
  return make_operator("sigmoid_gate", {evenly_spaced(x), evenly_spaced(gate)}, {x.shape()}, {x.dtype()},
                       body, {2 * bytes_of(x) + bytes_of(gate), 0})[0];
}

}  // namespace tiny_llm
