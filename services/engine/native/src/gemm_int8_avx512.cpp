// With AVX512 BW alone: products of 16-bit pairs (VPMADDWD), since 8-bit ones would saturate.
#include "gemm_int8_vector.hpp"

namespace pagemesh {
namespace {

struct DotWords {
  struct Line {
    __m512i even, odd;  // operands 0, 2 and 1, 3 of each quad as 16-bit numbers
  };
  static __m512i excess(const int8_t*, int64_t) { return _mm512_setzero_si512(); }
  static Line load(const char* b) { return widen(_mm512_loadu_si512(b)); }
  static Line widen(__m512i bytes) {
    return {_mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8), _mm512_srai_epi16(bytes, 8)};
  }
  static __m512i add(__m512i sum, const Line& b, __m512i a) {
    const Line words = widen(a);
    return _mm512_add_epi32(sum, _mm512_add_epi32(_mm512_madd_epi16(b.even, words.even),
                                                  _mm512_madd_epi16(b.odd, words.odd)));
  }
};

}  // namespace

void multiply_int8_avx512(const PanelTask& task) { multiply_int8_vector<DotWords>(task); }

}  // namespace pagemesh
