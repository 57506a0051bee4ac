#include "dot_avx512.hpp"
#include "gemm_vector.hpp"

namespace pagemesh {
void multiply_bf16_avx512(const PanelTask& task) { multiply_bf16_vector<DotAvx512>(task); }
}  // namespace pagemesh
