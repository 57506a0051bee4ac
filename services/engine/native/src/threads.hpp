// A team of threads that run one function together, meet at barriers, and take work items one at a time: first those of
// their own range, so that what they wrote before is in their cache, then what others have left.
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
  void each(int thread, int64_t num_items, DoItem do_item) {
    for (int other = 0; other < size(); ++other) {
      const int64_t owner = (thread + other) % size();
      const int64_t begin = num_items * owner / size(), end = num_items * (owner + 1) / size();
      for (int64_t item; (item = begin + ranges_[owner].num_taken.fetch_add(1, std::memory_order_relaxed)) < end;)
        do_item(item);
    }
    barrier();
  }

 private:
  struct Range {
    alignas(64) std::atomic<int64_t> num_taken{0};
  };

  void serve(int thread);

  std::vector<std::thread> threads_;
  const std::function<void(int)>* work_ = nullptr;
  std::atomic<bool> is_closing_{false};
  alignas(64) std::atomic<uint32_t> run_number_{0};
  alignas(64) std::atomic<uint32_t> num_arrived_{0};
  alignas(64) std::atomic<uint32_t> barrier_number_{0};
  std::vector<Range> ranges_;  // of each thread
};

}  // namespace pagemesh
