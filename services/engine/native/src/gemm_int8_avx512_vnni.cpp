// With VPDPBUSD, which takes unsigned by signed: the weights are made unsigned by adding 128.
#include "gemm_int8_vector.hpp"

namespace pagemesh {
namespace {

struct DotVnni {
  static constexpr int32_t kOffset = 128;
  static __m512i load(const char* b) {
    return _mm512_xor_si512(_mm512_loadu_si512(b), _mm512_set1_epi8(static_cast<char>(0x80)));
  }
  static __m512i add(__m512i sum, __m512i b, __m512i a) { return _mm512_dpbusd_epi32(sum, b, a); }
};

}  // namespace

void multiply_int8_avx512_vnni(const PanelTask& task) { multiply_int8_vector<DotVnni>(task); }

}  // namespace pagemesh
