// Compiled once per instruction set, with the kernels of one package: the list by which they are found.
#include "kernels.h"

#if defined(__AMX_TILE__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tiny_llm::TINY_ISA {

void linear(ThreadPool&, const Tensor&, const Product*, int);
void quantized_matmul_step(ThreadPool&, int, const Tensor&, const Product&);
void attention(ThreadPool&, const Tensor&, const Tensor&, const Tensor&, const Requests&, bool, float,
               const Tensor&);
void rms_norm(ThreadPool&, const Tensor&, const Tensor&, const Tensor&, float, const Tensor&, const Tensor&);
void rope(ThreadPool&, const Tensor&, const Tensor&, float, const Tensor&, const Tensor&, const int32_t*,
          bool, const Tensor&);
void swiglu(ThreadPool&, const Tensor&, const Tensor&, const Tensor&);
void sigmoid_gate(ThreadPool&, const Tensor&, const Tensor&, const Tensor&);
void route(ThreadPool&, const Tensor&, int64_t, bool, uint32_t*, float*);
void expert_mlp(ThreadPool&, const Tensor&, const Experts&, const Chosen&, const Tensor*, int, const Tensor&);
void embedding(ThreadPool&, const int32_t*, int64_t, const Matrix&, const Tensor&);
void argmax(ThreadPool&, const Tensor&, uint32_t*);
void draw(ThreadPool&, const Tensor&, const DrawRows&, uint32_t*);
void score(ThreadPool&, const Tensor&, const uint32_t*, int, float*, uint32_t*, float*);
void quantize_rows(ThreadPool&, const Tensor&, int8_t*, float*);
void gated_delta(ThreadPool&, const DeltaNet&, const DeltaInputs&, const DeltaStates&, const Tensor&);

}  // namespace tiny_llm::TINY_ISA

extern "C" __attribute__((visibility("default"))) const tiny_llm::Kernels* tiny_llm_kernels() {
  using namespace tiny_llm::TINY_ISA;
#if defined(__AMX_TILE__)
  // Linux keeps matrix registers for a process that asks: ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA.
  syscall(SYS_arch_prctl, 0x1023, 18);
#endif
  static const tiny_llm::Kernels table{linear,       quantized_matmul_step,
                                       attention,    rms_norm,
                                       rope,         swiglu,
                                       sigmoid_gate, route,
                                       expert_mlp,   embedding,
                                       argmax,       draw,
                                       score,        quantize_rows,
                                       gated_delta};
  return &table;
}
