// Zeroed memory on huge pages: weights and KV are read by the gigabyte, and page walks would show.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

namespace pagemesh {

class Buffer {
 public:
  Buffer() = default;

  explicit Buffer(size_t num_bytes) : size_(num_bytes) {
    if (num_bytes == 0) return;
#ifdef __SANITIZE_ADDRESS__
    start_ = static_cast<char*>(std::aligned_alloc(64, (num_bytes + 63) / 64 * 64));  // so that its ends are guarded
    if (start_ == nullptr) throw std::bad_alloc();
    std::fill_n(start_, num_bytes, char{0});
#else
    size_t size = (num_bytes + kHugePage - 1) / kHugePage * kHugePage;
    mapped_size_ = size + kHugePage;
    mapped_ = mmap(nullptr, mapped_size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED) {
      mapped_ = nullptr;
      throw std::bad_alloc();
    }
    start_ = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(mapped_) + kHugePage - 1) & ~(kHugePage - 1));
    madvise(start_, size, MADV_HUGEPAGE);  // advice: without huge pages it is only slower
#endif
  }

  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer() {
#ifdef __SANITIZE_ADDRESS__
    std::free(start_);
#else
    if (mapped_ != nullptr) munmap(mapped_, mapped_size_);
#endif
  }

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(start_);
  }
  size_t size() const { return size_; }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;

  void swap(Buffer& other) {
    std::swap(size_, other.size_);
    std::swap(mapped_size_, other.mapped_size_);
    std::swap(mapped_, other.mapped_);
    std::swap(start_, other.start_);
  }

  size_t size_ = 0, mapped_size_ = 0;
  void* mapped_ = nullptr;
  char* start_ = nullptr;
};

}  // namespace pagemesh
