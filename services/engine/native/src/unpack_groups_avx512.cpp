#include "narrow.hpp"
#include "unpack_groups.hpp"

namespace pagemesh {
void unpack_groups_avx512(const Linear& linear, int64_t panel, const char* next, uint16_t* tiles) {
  unpack_groups<NarrowByShifts>(linear, panel, next, tiles);
}
}  // namespace pagemesh
