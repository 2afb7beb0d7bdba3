// Vectors of 512 bits, with products of 8 bits that are summed up in 32 (Intel since Cascade Lake and Ice Lake, AMD since Zen 4).
#include "form.h"

namespace textgen {
namespace {

struct Vectors {
    using Int = __m512i;
    using Float = __m512;
    static constexpr int kLanes = 16;
    static constexpr int kRows = 6;  // 24 of 32 registers hold sums

    static Float zero() { return _mm512_setzero_ps(); }
    static Int repeat(int32_t number) { return _mm512_set1_epi32(number); }
    static Float repeat(float number) { return _mm512_set1_ps(number); }
    static Float load(const float* from) { return _mm512_loadu_ps(from); }
    static Float load(const uint8_t* from) {
        return to_float(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
    }
    static Float to_float(Int numbers) { return _mm512_cvtepi32_ps(numbers); }
    static Float times(Float a, Float b) { return _mm512_mul_ps(a, b); }
    static Float add_product(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
    static Float subtract_product(Float a, Float b, Float c) { return _mm512_fnmadd_ps(a, b, c); }

    static void store(float* to, Float numbers, int64_t room) {
        if (room >= kLanes) _mm512_storeu_ps(to, numbers);
        else if (room > 0) _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << room) - 1), numbers);
    }

    static Int even(Int words) { return _mm512_and_si512(words, _mm512_set1_epi8(15)); }
    static Int odd(Int words) { return even(_mm512_srli_epi16(words, 4)); }
    static Int at(const uint32_t* words, int64_t vector) { return _mm512_loadu_si512(words + vector * kLanes); }
    static void put(uint32_t* words, int64_t vector, Int numbers) { _mm512_storeu_si512(words + vector * kLanes, numbers); }
    static Int dot(Int sum, Int codes, Int others) { return _mm512_dpbusd_epi32(sum, codes, others); }

    using ByteSums = DotSums<Vectors>;
    using NibbleSums = DotSums<Vectors>;
};

}  // namespace

extern const Form kAvx512Vnni = form<Vectors>("avx512-vnni");

}  // namespace textgen
