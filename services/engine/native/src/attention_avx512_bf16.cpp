#include "attention_vector.hpp"
#include "dot_avx512_bf16.hpp"
#include "narrow_avx512_bf16.hpp"

namespace pagemesh {
void attend_avx512_bf16(const LayerAttention& layer, const AttentionItem& item, AttentionScratch& scratch) {
  attend<VectorProducts<DotAvx512Bf16, NarrowByInstruction>>(layer, item, scratch);
}
}  // namespace pagemesh
