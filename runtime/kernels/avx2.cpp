// Vectors of 256 bits, for every x86 processor since Haswell and Zen.
#include "vectors256.h"

namespace textgen {
namespace {

// Codes of 4 bits: sums of four groups fit in 16 bits.
struct Avx2NibbleSums {
    using Partial = __m256i;
    static __m256i begin(__m256i) { return _mm256_setzero_si256(); }
    static __m256i add(__m256i sum, __m256i codes, __m256i others) {
        return _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, others));
    }
    static __m256i end(__m256i sum, __m256i partial) {
        return _mm256_add_epi32(sum, _mm256_madd_epi16(partial, _mm256_set1_epi16(1)));
    }
};

// Codes of 8 bits: sums of two products fit in 16 bits if both factors are at most 128, so these count from 128.
struct Avx2ByteSums {
    static constexpr int32_t kOffset = 128;
    using Partial = __m256i;
    static __m256i begin(__m256i sum) { return sum; }
    static __m256i add(__m256i sum, __m256i codes, __m256i others) {
        const __m256i centred = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(centred), _mm256_sign_epi8(others, centred));
        return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    static __m256i end(__m256i, __m256i partial) { return partial; }
};

struct Vectors : Vectors256 {
    using ByteSums = Avx2ByteSums;
    using NibbleSums = Avx2NibbleSums;
};

}  // namespace

extern const Form kAvx2 = form<Vectors>("avx2");

}  // namespace textgen
