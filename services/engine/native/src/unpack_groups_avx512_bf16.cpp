#include "unpack_groups.hpp"

namespace pagemesh {
namespace {

struct NarrowByInstruction {
  static void store(uint16_t* to, __m512 first, __m512 second) {
    _mm512_storeu_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
  }
};

}  // namespace

void unpack_groups_avx512_bf16(const Linear& linear, int64_t panel, const char* next, uint16_t* tiles) {
  unpack_groups<NarrowByInstruction>(linear, panel, next, tiles);
}

}  // namespace pagemesh
