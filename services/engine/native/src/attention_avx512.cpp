#include "attention_vector.hpp"
#include "dot_avx512.hpp"
#include "narrow.hpp"

namespace pagemesh {
void attend_avx512(const LayerAttention& layer, const AttentionItem& item, AttentionScratch& scratch) {
  attend<VectorProducts<DotAvx512, NarrowByShifts>>(layer, item, scratch);
}
}  // namespace pagemesh
