// The thread pool of a process.
#include "thread_pool.h"

#include <atomic>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tiny_llm {
namespace {

// Between the operators of a step there are microseconds: a thread that slept would be late for most of them.
constexpr unsigned kSpins = 4000;
// A core on which another thread could compute is offered to it after some microseconds, not after a slice of
// milliseconds: where programs share the cores, spinning takes from the work that it waits for.
constexpr unsigned kSpinsBetweenOffers = 100;

/// One of many short waits, the `spins`th.
inline void spin(unsigned spins) {
  if (spins % kSpinsBetweenOffers == kSpinsBetweenOffers - 1) return std::this_thread::yield();
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

struct Buffer {
  void* data = nullptr;
  size_t bytes = 0;
  ~Buffer() { std::free(data); }
};

class SpinningPool : public ThreadPool {
 public:
  explicit SpinningPool(int size) : buffers_(size * kSlots), size_(size) {
    try {
      for (int id = 1; id < size; ++id) workers_.emplace_back([this, id] { work(id); });
    } catch (const std::exception&) {
      size_t started = workers_.size() + 1;
      end();  // a destructor is not called where the constructor has failed
      throw std::runtime_error("only " + std::to_string(started) + " of " + std::to_string(size) +
                               " threads could be started");
    }
  }

  ~SpinningPool() override { end(); }

  int size() const override { return size_; }

  void* scratch(int id, int slot, size_t bytes) override {
    Buffer& buffer = buffers_[id * kSlots + slot];
    if (bytes > buffer.bytes) {
      std::free(buffer.data);
      buffer.bytes = (bytes + 4095) / 4096 * 4096;
      buffer.data = std::aligned_alloc(64, buffer.bytes);
      if (buffer.data == nullptr) throw std::bad_alloc();
    }
    return buffer.data;
  }

 protected:
  void start(void (*body)(void*, int), void* context) override {
    body_ = body, context_ = context;
    open_round();
    attempt(0);
    // A thread that has not started by now, because another process holds its core, is not waited for.
    gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
    for (unsigned spins = 0; (gate_.load(std::memory_order_acquire) & kInside) != 0; ++spins) spin(spins);
    if (std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
  }

  void reset() override { next_.store(0, std::memory_order_relaxed); }
  int64_t take() override { return next_.fetch_add(1, std::memory_order_relaxed); }

 private:
  static constexpr int kSlots = 16;

  // One word says which round it is, whether it may still be joined, and how many threads are at work.
  static constexpr uint64_t kInside = 0xffff, kOpen = 0x10000, kRound = 0x100000;

  void open_round() {
    gate_.store((gate_.load(std::memory_order_relaxed) & ~(kRound - 1)) + kRound + kOpen,
                std::memory_order_release);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
  }

  bool enter(uint64_t seen) {
    uint64_t gate = gate_.load(std::memory_order_acquire);
    while ((gate & kOpen) != 0 && gate / kRound != seen)
      if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel)) return true;
    return false;
  }

  void end() {
    is_ending_.store(true);
    open_round();
    for (auto& worker : workers_) worker.join();
  }

  /// A thread's error is kept until all are done, and rethrown by the caller.
  void attempt(int id) {
    try {
      body_(context_, id);
    } catch (...) {
      std::lock_guard held(error_lock_);
      if (!error_) error_ = std::current_exception();
    }
  }

  void work(int id) {
    uint32_t seen = 0;
    for (uint64_t served = 0;;) {
      unsigned spins = 0;
      uint32_t now;
      while ((now = round_.load(std::memory_order_acquire)) == seen)
        if (++spins < kSpins)
          spin(spins);
        else
          round_.wait(seen, std::memory_order_acquire);
      seen = now;
      if (is_ending_.load()) return;
      if (!enter(served)) continue;
      served = gate_.load(std::memory_order_relaxed) / kRound;
      attempt(id);
      gate_.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  std::vector<Buffer> buffers_;
  int size_;
  void (*body_)(void*, int) = nullptr;
  void* context_ = nullptr;
  std::exception_ptr error_;
  std::mutex error_lock_;
  alignas(64) std::atomic<uint32_t> round_{0};
  alignas(64) std::atomic<uint64_t> gate_{0};
  std::atomic<bool> is_ending_{false};
  alignas(64) std::atomic<int64_t> next_{0};
  std::vector<std::thread> workers_;
};

}  // namespace

std::unique_ptr<ThreadPool> make_thread_pool(int size) { return std::make_unique<SpinningPool>(size); }

}  // namespace tiny_llm
