#include "threads.hpp"

#include <sched.h>

namespace pagemesh {
namespace {

// About 100 us: longer than a barrier that meets no trouble. Beyond, another process needs the core.
constexpr int kPausesBeforeYield = 2000;

}  // namespace

Team::Team(int num_threads) : ranges_(num_threads) {
  for (int thread = 1; thread < num_threads; ++thread) threads_.emplace_back([this, thread] { serve(thread); });
}

Team::~Team() {
  is_closing_ = true;
  run_number_.fetch_add(1);
  run_number_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& work) {
  work_ = &work;
  run_number_.fetch_add(1, std::memory_order_release);
  run_number_.notify_all();
  work(0);
  barrier();
}

void Team::serve(int thread) {
  for (uint32_t done = 0;;) {
    for (int pause = 0; pause < kPausesBeforeYield && run_number_.load(std::memory_order_acquire) == done; ++pause)
      _mm_pause();
    run_number_.wait(done, std::memory_order_acquire);  // sleeps: nothing may run for long
    done = run_number_.load(std::memory_order_acquire);
    if (is_closing_) return;
    (*work_)(thread);
    barrier();
  }
}

void Team::barrier() {
  const uint32_t number = barrier_number_.load(std::memory_order_acquire);
  if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(size())) {
    num_arrived_.store(0, std::memory_order_relaxed);
    for (Range& range : ranges_) range.num_taken.store(0, std::memory_order_relaxed);
    barrier_number_.store(number + 1, std::memory_order_release);
    return;
  }
  for (int pause = 0; barrier_number_.load(std::memory_order_acquire) == number; ++pause)
    if (pause < kPausesBeforeYield)
      _mm_pause();
    else
      sched_yield();
}

}  // namespace pagemesh
