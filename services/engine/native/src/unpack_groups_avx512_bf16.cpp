#include "narrow_avx512_bf16.hpp"
#include "unpack_groups.hpp"

namespace pagemesh {
void unpack_groups_avx512_bf16(const Linear& linear, int64_t panel, const char* next, uint16_t* tiles) {
  unpack_groups<NarrowByInstruction>(linear, panel, next, tiles);
}
}  // namespace pagemesh
