// The threads that share one operator's work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tiny_llm {

/// One per process. The caller of `each` is thread 0; the others sleep between operators.
class ThreadPool {
 public:
  virtual ~ThreadPool() = default;
  virtual int size() const = 0;

  /// A buffer of thread `id`, aligned to 64 bytes and kept for the next call; slots do not disturb each
  /// other.
  virtual void* scratch(int id, int slot, size_t bytes) = 0;

  /// Call body(id, item) for every item below `count`; which thread gets which item is left to chance.
  template <class Body>
  void each(int64_t count, Body&& body) {
    if (count <= 1 || size() == 1) {
      for (int64_t item = 0; item < count; ++item) body(0, item);
      return;
    }
    reset();
    auto share = [&](int id) {
      for (int64_t item = take(); item < count; item = take()) body(id, item);
    };
    start([](void* f, int id) { (*static_cast<decltype(share)*>(f))(id); }, &share);
  }

 protected:
  /// Call body(context, id) on thread 0, the caller, and on every other thread that starts before it is done.
  virtual void start(void (*body)(void*, int), void* context) = 0;
  virtual void reset() = 0;
  virtual int64_t take() = 0;
};

/// A pool of `size` threads, the caller among them. Throws std::runtime_error if the system does not start
/// them.
std::unique_ptr<ThreadPool> make_thread_pool(int size);

}  // namespace tiny_llm
