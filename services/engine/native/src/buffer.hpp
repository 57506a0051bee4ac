// Zeroed memory on huge pages: weights and KV are read by the gigabyte, and page walks would show.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace pagemesh {

class Buffer {
 public:
  Buffer() = default;

  explicit Buffer(size_t num_bytes) : size_((num_bytes + kHugePage - 1) / kHugePage * kHugePage) {
    if (num_bytes == 0) return;
    mapped_size_ = size_ + kHugePage;
    mapped_ = mmap(nullptr, mapped_size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED) throw std::bad_alloc();
    start_ = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(mapped_) + kHugePage - 1) & ~(kHugePage - 1));
    madvise(start_, size_, MADV_HUGEPAGE);  // advice: without huge pages it is only slower
  }

  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer() {
    if (mapped_ != nullptr) munmap(mapped_, mapped_size_);
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
