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

    struct Sums {
        using Partial = Int;
        static Int begin(Int sum) { return sum; }
        static Int add(Int sum, Int codes, Int others) { return _mm512_dpbusd_epi32(sum, codes, others); }
        static Int end(Int, Int partial) { return partial; }
    };
    struct Bytes : Sums {
        static constexpr int32_t kOffset = 0;
        const uint32_t* words;
        explicit Bytes(const uint32_t* words) : words(words) {}
        Int at(int64_t group, int half) const { return Vectors::at(words, group * 2 + half); }
    };
    using Unpacked = Bytes;
    struct Nibbles : Sums {
        const uint32_t* words;
        explicit Nibbles(const uint32_t* words) : words(words) {}
        Int at(int64_t group, int half) const {
            const Int both = Vectors::at(words, group / 2 * 2 + half);
            return group % 2 == 0 ? even(both) : odd(both);
        }
    };

    static void unpack(const uint32_t* words, int64_t count, int64_t width, uint32_t* out) {
        for (int64_t begin = 0; begin < count; begin += width)
            for (int64_t half = 0; half < width; half += kLanes) {
                const Int both = _mm512_loadu_si512(words + begin + half);
                _mm512_store_si512(out + 2 * begin + half, even(both));
                _mm512_store_si512(out + 2 * begin + width + half, odd(both));
            }
    }
};

}  // namespace

extern const Form kAvx512Vnni = form<Vectors>("avx512-vnni");

}  // namespace textgen
