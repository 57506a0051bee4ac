// With VPDPBUSD, which takes unsigned by signed: the weights are made unsigned by adding 128.
#include "gemm_int8_vector.hpp"

namespace pagemesh {
namespace {

struct DotVnni {
  static __m512i excess(const int8_t* a, int64_t num_steps) {
    __m512i sum = _mm512_setzero_si512();
    for (int64_t step = 0; step < num_steps; ++step, a += 2 * kTileBytes)
      sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), _mm512_loadu_si512(a));
    return _mm512_set1_epi32(128 * _mm512_reduce_add_epi32(sum));
  }
  static __m512i load(const char* b) {
    return _mm512_xor_si512(_mm512_loadu_si512(b), _mm512_set1_epi8(static_cast<char>(0x80)));
  }
  static __m512i add(__m512i sum, __m512i b, __m512i a) { return _mm512_dpbusd_epi32(sum, b, a); }
};

}  // namespace

void multiply_int8_avx512_vnni(const PanelTask& task) { multiply_int8_vector<DotVnni>(task); }

}  // namespace pagemesh
