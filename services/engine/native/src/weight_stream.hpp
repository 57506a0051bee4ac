// The stream of weights that a thread reads from front to back, panel after panel, and where it goes on.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace pagemesh {

struct WeightStream {
  const char *end, *next;  // of this panel; the start of the following one, perhaps null

  // Asks for `num_bytes` that are read `ahead` bytes after `position`.
  void prefetch(const char* position, int64_t num_bytes, int64_t ahead) const {
    const char* wanted = position + ahead;
    if (wanted >= end) {
      if (next == nullptr) return;
      wanted = next + (wanted - end);
    }
    for (int64_t offset = 0; offset < num_bytes; offset += 64) _mm_prefetch(wanted + offset, _MM_HINT_T0);
  }
};

}  // namespace pagemesh
