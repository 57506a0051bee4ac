#include "dot_avx512_bf16.hpp"
#include "gemm_vector.hpp"

namespace pagemesh {
void multiply_bf16_avx512_bf16(const PanelTask& task) { multiply_bf16_vector<DotAvx512Bf16>(task); }
}  // namespace pagemesh
