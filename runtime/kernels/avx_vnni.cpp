// Vectors of 256 bits, with products of 8 bits that are summed up in 32 (Intel since Alder Lake, AMD since Zen 5).
#include "vectors256.h"

namespace textgen {
namespace {

struct Sums {
    static constexpr int32_t kOffset = 0;
    using Partial = __m256i;
    static __m256i begin(__m256i sum) { return sum; }
    static __m256i add(__m256i sum, __m256i codes, __m256i others) { return _mm256_dpbusd_avx_epi32(sum, codes, others); }
    static __m256i end(__m256i, __m256i partial) { return partial; }
};

struct Vectors : Vectors256 {
    using Bytes = WholeCodes<Sums>;
    using Unpacked = WholeCodes<Sums>;
    using Nibbles = HalfCodes<Sums>;
};

}  // namespace

extern const Form kAvxVnni = form<Vectors>("avx-vnni");

}  // namespace textgen
