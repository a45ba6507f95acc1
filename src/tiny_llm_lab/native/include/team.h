// The threads that share one operator's work.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tiny_llm {

/// One per process. The caller of `each` is member 0; the others sleep between operators.
class Team {
 public:
  virtual ~Team() = default;
  virtual int size() const = 0;

  /// A buffer of member `id`, aligned to 64 bytes and kept for the next call; slots do not disturb each other.
  virtual void* scratch(int id, int slot, size_t bytes) = 0;

  /// Call body(id, item) for every item below `count`; who gets which item is left to chance.
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
  /// Call body(context, id) on member 0, the caller, and on those others that come before it is done.
  virtual void start(void (*body)(void*, int), void* context) = 0;
  virtual void reset() = 0;
  virtual int64_t take() = 0;
};

}  // namespace tiny_llm
