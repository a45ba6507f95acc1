// A kernel as a node of MLX's lazy graph.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm {

namespace mx = mlx::core;

/// What an operator has to move and to compute, for the profile.
struct Cost {
  double bytes = 0, flops = 0;
  bool has_parts = false;  // the body notes what each of its parts costs instead, by `noted`
};

/// Where an output is allocated that continues an input. `no`: in new memory, uninitialised. `if_free`: in
/// the memory of that input if no other array or operator refers to it, otherwise in a copy of it. `always`:
/// in the memory of that input; every array that still refers to it changes.
enum class InPlace { no, if_free, always };

/// How an operator uses memory. Outputs from number `continued` on continue the inputs from `stored` on, one
/// by one, those from `free_from` on `if_free`. No output from `uncopied` on gets a copy: the body reads the
/// input itself. Inputs from number `whole_from` on are made contiguous, by a
/// copy if necessary; of the others only the rows are.
struct Memory {
  InPlace in_place = InPlace::no;
  size_t whole_from = SIZE_MAX;
  size_t continued = 0, stored = 0, free_from = SIZE_MAX, uncopied = SIZE_MAX;
};

using Body = std::function<void(ThreadPool&, const std::vector<Tensor>& in, const std::vector<Tensor>& out)>;

/// One node: when MLX evaluates it, `body` runs on the stream's thread with the thread pool.
class Operator : public mx::Primitive {
 public:
  Operator(mx::Stream stream, const char* name, Body body, Cost cost, Memory memory)
      : Primitive(stream),
        name_(name),
        body_(std::make_shared<const Body>(std::move(body))),
        cost_(cost),
        memory_(memory) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("the C++ kernels run on the CPU: call mx.set_default_device(mx.cpu)");
  }
  const char* name() const override { return name_; }

 private:
  const char* name_;
  std::shared_ptr<const Body> body_;
  Cost cost_;  // none: the body notes its parts
  Memory memory_;
};

/// Lazy outputs of an operator on the CPU's default stream. Throws if no kernel reads an input's dtype.
std::vector<mx::array> make_operator(const char* name, std::vector<mx::array> inputs,
                                     std::vector<mx::Shape> shapes, std::vector<mx::Dtype> dtypes, Body body,
                                     Cost cost, Memory memory = {});

struct Measurement {
  std::string name;
  double seconds, bytes, flops;
};

/// What a kernel sees of an evaluated array. More than four dimensions come only to operators on rows, evenly
/// spaced: the first of them count as one.
Tensor tensor_of(const mx::array& a);
/// Within the body of an operator that has parts: do a part of its work, and note what that takes.
void noted(const char* name, const Cost& cost, const std::function<void()>& part);

/// Threads that later operators use; waits for the present one to end.
void set_num_threads(int count);
int num_threads();
/// To be called when an operator's error has been raised and nothing runs any more. MLX does not count the
/// tasks that it skipped behind the error as ended, and after some dozen errors would wait for them forever.
void settle();
/// Begin to note what every operator takes; `stop_profile` returns the notes.
void start_profile();
std::vector<Measurement> stop_profile();

}  // namespace tiny_llm
