// What the two forms with vectors of 256 bits have in common.
#pragma once

#include "form.h"

namespace textgen {
namespace {

struct Vectors256 {
    using Int = __m256i;
    using Float = __m256;
    static constexpr int kLanes = 8;
    static constexpr int kRows = 4;

    static Float zero() { return _mm256_setzero_ps(); }
    static Int repeat(int32_t number) { return _mm256_set1_epi32(number); }
    static Float repeat(float number) { return _mm256_set1_ps(number); }
    static Float load(const float* from) { return _mm256_loadu_ps(from); }
    static Float load(const uint8_t* from) {
        return to_float(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
    }
    static Float to_float(Int numbers) { return _mm256_cvtepi32_ps(numbers); }
    static Float times(Float a, Float b) { return _mm256_mul_ps(a, b); }
    static Float add_product(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
    static Float subtract_product(Float a, Float b, Float c) { return _mm256_fnmadd_ps(a, b, c); }

    static void store(float* to, Float numbers, int64_t room) {
        if (room >= kLanes) _mm256_storeu_ps(to, numbers);
        else if (room > 0) {
            const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            _mm256_maskstore_ps(to, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(room)), places), numbers);
        }
    }

    static Int even(Int words) { return _mm256_and_si256(words, _mm256_set1_epi8(15)); }
    static Int odd(Int words) { return even(_mm256_srli_epi16(words, 4)); }
    static Int at(const uint32_t* words, int64_t vector) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + vector * kLanes));
    }
    static void put(uint32_t* words, int64_t vector, Int numbers) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + vector * kLanes), numbers);
    }
};

}  // namespace
}  // namespace textgen
