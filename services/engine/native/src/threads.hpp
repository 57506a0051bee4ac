// A team of threads that run one function together, meet at barriers, and take work items one at a time.
// Who computes an item never changes its result.
#pragma once

#include <immintrin.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace pagemesh {

class Team {
 public:
  explicit Team(int num_threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  // Runs `work(thread)` on every thread, the caller being thread 0, and returns when all are done.
  void run(const std::function<void(int)>& work);

  // Within `run`: all threads wait for each other.
  void barrier();

  // Within `run`: calls do_item(item) for items 0..num_items-1, each on the thread that takes it first. Ends with a
  // barrier.
  template <class DoItem>
  void each(int64_t num_items, DoItem do_item) {
    for (int64_t item; (item = next_item_.fetch_add(1, std::memory_order_relaxed)) < num_items;) do_item(item);
    barrier();
  }

 private:
  void serve(int thread);

  std::vector<std::thread> threads_;
  const std::function<void(int)>* work_ = nullptr;
  std::atomic<bool> is_closing_{false};
  alignas(64) std::atomic<uint32_t> run_number_{0};
  alignas(64) std::atomic<uint32_t> num_arrived_{0};
  alignas(64) std::atomic<uint32_t> barrier_number_{0};
  alignas(64) std::atomic<int64_t> next_item_{0};
};

}  // namespace pagemesh
