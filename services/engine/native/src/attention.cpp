#include "attention.hpp"

#include <stdexcept>

namespace pagemesh {

AttentionKernel attention_of(KernelPath path) {
  switch (path) {
    case KernelPath::amx: return attend_amx;
    case KernelPath::avx512_bf16: return attend_avx512_bf16;
    case KernelPath::avx512: return attend_avx512;
    case KernelPath::none: break;
  }
  throw std::invalid_argument("no kernel path");
}

}  // namespace pagemesh
