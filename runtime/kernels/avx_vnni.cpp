// Vectors of 256 bits, with products of 8 bits that are summed up in 32 (Intel since Alder Lake, AMD since Zen 5).
#include "vectors256.h"

namespace textgen {
namespace {

struct Vectors : Vectors256 {
    static Int dot(Int sum, Int codes, Int others) { return _mm256_dpbusd_avx_epi32(sum, codes, others); }

    using ByteSums = DotSums<Vectors>;
    using NibbleSums = DotSums<Vectors>;
};

}  // namespace

extern const Form kAvxVnni = form<Vectors>("avx-vnni");

}  // namespace textgen
