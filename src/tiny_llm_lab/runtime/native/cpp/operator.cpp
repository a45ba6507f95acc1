#include "operator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>

#include "checks.h"
#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/scheduler.h"
#include "thread_pool.h"

namespace tiny_llm {
namespace {

/// The state that all operators of the process share. `lock` guards the rest: one operator at a time uses the
/// threads, from any stream.
struct Runtime {
  std::mutex lock;
  std::unique_ptr<ThreadPool> threads;
  bool is_profiling = false;
  std::vector<Measurement> notes;
};

Runtime runtime;

DType dtype_of(const mx::array& a) {
  switch (a.dtype().val()) {
    case mx::Dtype::Val::float32: return DType::f32;
    case mx::Dtype::Val::float16: return DType::f16;
    case mx::Dtype::Val::bfloat16: return DType::bf16;
    case mx::Dtype::Val::uint32: return DType::u32;
    case mx::Dtype::Val::int32: return DType::i32;
    case mx::Dtype::Val::int8: return DType::i8;
    default: refuse("no kernel reads ", a.dtype(), ": use astype");
  }
}

/// Kernels read whole rows: neighbours in the last dimension must be neighbours in memory.
bool has_whole_rows(const mx::array& a) { return a.ndim() == 0 || a.shape(-1) == 1 || a.strides(-1) == 1; }

bool is_one_piece(const Tensor& t) {
  int64_t step = 1;
  for (int dim = t.ndim - 1; dim >= 0; step *= t.shape[dim--])
    if (t.shape[dim] != 1 && t.stride[dim] != step) return false;
  return true;
}

/// All elements of one array, of any strides, in order.
void copy_elements(const Tensor& from, const Tensor& to, size_t size) {
  int64_t count = from.size();
  if (is_one_piece(from)) {
    std::memcpy(to.data, from.data, count * size);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    int64_t at = 0, rest = i;
    for (int dim = from.ndim - 1; dim >= 0; --dim) {
      at += rest % from.shape[dim] * from.stride[dim];
      rest /= from.shape[dim];
    }
    std::memcpy(static_cast<char*>(to.data) + i * size, static_cast<char*>(from.data) + at * size, size);
  }
}

/// A new array for `a`'s elements in order, and the task that will copy them.
mx::array begin_copy(const mx::array& a, mx::cpu::CommandEncoder& encoder) {
  mx::array copy(a.shape(), a.dtype(), nullptr, {});
  copy.set_data(mx::allocator::malloc(a.nbytes()));
  encoder.dispatch(
      [from = tensor_of(a), to = tensor_of(copy), size = a.itemsize()] { copy_elements(from, to, size); });
  return copy;
}

}  // namespace

Tensor tensor_of(const mx::array& a) {
  Tensor t;
  t.data = const_cast<char*>(a.data<char>());
  t.dtype = dtype_of(a);
  int ndim = a.ndim(), merged = std::max(0, ndim - 4);
  t.ndim = ndim - merged;
  t.shape[0] = 1;
  for (int i = 0; i < ndim; ++i) {
    if (i <= merged) {
      t.shape[0] *= a.shape(i);
      if (a.shape(i) != 1) t.stride[0] = a.strides(i);
    } else {
      t.shape[i - merged] = a.shape(i), t.stride[i - merged] = a.strides(i);
    }
  }
  return t;
}

void noted(const char* name, const Cost& cost, const std::function<void()>& part) {
  auto start = std::chrono::steady_clock::now();
  part();
  if (!runtime.is_profiling) return;
  std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  runtime.notes.push_back({name, spent.count(), cost.bytes, cost.flops});
}

void Operator::eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& encoder = mx::cpu::get_command_encoder(stream());
  // Every output refers to the inputs. Until only one does, no input is seen to be free.
  for (auto& a : outputs)
    if (&a.inputs() != &inputs && !a.is_tracer()) a.inputs().clear();
  std::vector<Tensor> in, out;
  for (auto& a : inputs) {
    encoder.set_input_array(a);
    if (in.size() < memory_.whole_from ? has_whole_rows(a) : is_one_piece(tensor_of(a))) {
      in.push_back(tensor_of(a));
    } else {
      mx::array copy = begin_copy(a, encoder);
      in.push_back(tensor_of(copy));
      encoder.add_temporary(std::move(copy));
    }
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    mx::array& a = outputs[i];
    bool continues = memory_.in_place != InPlace::no && i >= memory_.continued;
    size_t stored = continues ? memory_.stored + i - memory_.continued : 0;
    bool is_always = memory_.in_place == InPlace::always && stored < memory_.free_from;
    bool may_write = continues && (is_always || inputs[stored].is_donatable());
    if (may_write && inputs[stored].flags().row_contiguous)
      a.copy_shared_buffer(inputs[stored]);
    else
      a.set_data(mx::allocator::malloc(a.nbytes()));
    encoder.set_output_array(a);
    out.push_back(tensor_of(a));
    if (continues && i < memory_.uncopied && out[i].data != in[stored].data)
      encoder.dispatch(
          [from = in[stored], to = out[i], size = a.itemsize()] { copy_elements(from, to, size); });
  }
  encoder.dispatch([body = body_, cost = cost_, name = name_, in = std::move(in), out = std::move(out)] {
    std::lock_guard held(runtime.lock);
    auto run = [&] { (*body)(*runtime.threads, in, out); };
    cost.has_parts ? run() : noted(name, cost, run);
  });
}

std::vector<mx::array> make_operator(const char* name, std::vector<mx::array> inputs,
                                     std::vector<mx::Shape> shapes, std::vector<mx::Dtype> dtypes, Body body,
                                     Cost cost, Memory memory) {
  for (auto& input : inputs)
    dtype_of(input);  // here, where its caller still is, and not when MLX comes to the node
  auto node =
      std::make_shared<Operator>(mx::default_stream(mx::Device::cpu), name, std::move(body), cost, memory);
  return mx::array::make_arrays(std::move(shapes), dtypes, node, inputs);
}

void set_num_threads(int count) {
  if (count < 1) throw std::invalid_argument("threads must be 1 or more");
  std::lock_guard held(runtime.lock);
  if (runtime.threads == nullptr || runtime.threads->size() != count)
    runtime.threads = make_thread_pool(count);
}

void settle() {
  while (mx::scheduler::n_active_tasks() > 0)
    mx::scheduler::notify_task_completion(mx::default_stream(mx::Device::cpu));
}

int num_threads() { return runtime.threads->size(); }

void start_profile() {
  std::lock_guard held(runtime.lock);
  runtime.notes.clear();
  runtime.is_profiling = true;
}

std::vector<Measurement> stop_profile() {
  std::lock_guard held(runtime.lock);
  runtime.is_profiling = false;
  return std::move(runtime.notes);
}

}  // namespace tiny_llm
