// A pool whose other threads do not run: signals hold them, as another process does that has their cores.
//
//   late_threads    (built and run by test_errors.py; ends with 0 if the caller did all the work)
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "thread_pool.h"

namespace {

constexpr int kThreads = 4, kItems = 1000;
std::atomic<int> num_held{0};
std::atomic<bool> may_go_on{false};

void hold(int) {
  num_held.fetch_add(1);
  while (!may_go_on.load()) std::this_thread::yield();
  num_held.fetch_sub(1);
}

/// Every item is computed once; returns how many of them the caller had.
int caller_had(tiny_llm::ThreadPool& threads) {
  std::vector<std::atomic<int>> times(kItems);
  std::atomic<int> own{0};
  threads.each(kItems, [&](int id, int64_t item) { times[item].fetch_add(1), own.fetch_add(id == 0); });
  for (auto& count : times)
    if (count.load() != 1) return -1;
  return own.load();
}

}  // namespace

int main() {
  auto threads = tiny_llm::make_thread_pool(kThreads);
  std::atomic<int> num_inside{0};
  pthread_t handles[kThreads];
  threads->each(kThreads, [&](int id, int64_t) {
    handles[id] = pthread_self();
    num_inside.fetch_add(1);
    while (num_inside.load() < kThreads) std::this_thread::yield();  // so that every thread has one item
  });
  signal(SIGUSR1, hold);
  for (int id = 1; id < kThreads; ++id) pthread_kill(handles[id], SIGUSR1);
  while (num_held.load() < kThreads - 1) std::this_thread::yield();
  int alone = 0;
  for (int round = 0; round < 3; ++round) alone += caller_had(*threads);
  may_go_on.store(true);
  while (num_held.load() > 0) std::this_thread::yield();
  int after = 0;  // who comes too late for a round comes for another
  for (int round = 0; round < 100 && after >= 0; ++round) after = caller_had(*threads);
  std::printf("the caller had %d items of %d, and after that %d of %d\n", alone, 3 * kItems, after, kItems);
  return alone == 3 * kItems && after >= 0 ? 0 : 1;
}
