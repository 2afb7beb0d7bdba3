// The products, written once for vectors of any length; each file that includes this brings the instructions as a type `V`.
#pragma once

#include <immintrin.h>

#include <cstdlib>
#include <cstring>
#include <limits>

#include "matrix.h"

namespace textgen {
namespace {

constexpr int64_t kGroup = 4;    // codes that one instruction sums up
constexpr int64_t kChain = 4;    // groups whose sums may fit in 16 bits; a block has a multiple of them
constexpr float kSmallest = 1e-36f;  // what is smaller than this counts as zero: 127 divided by it would overflow
constexpr int64_t kFewRows = 12; // no more than these repay that codes of 4 bits are unpacked again for each tile

inline int32_t group_at(const int8_t* codes) {
    int32_t group;
    std::memcpy(&group, codes, sizeof group);
    return group;
}

// Sums of products by an instruction that adds up a group in 32 bits.
template <class V>
struct DotSums {
    static constexpr int32_t kOffset = 0;
    using Partial = typename V::Int;
    static Partial begin(Partial sum) { return sum; }
    static Partial add(Partial sum, Partial codes, Partial others) { return V::dot(sum, codes, others); }
    static Partial end(Partial, Partial partial) { return partial; }
};

// Codes of 8 bits, or of 4 bits that are unpacked: a word holds a group.
template <class V, class Sums>
struct WholeCodes : Sums {
    const uint32_t* words;
    explicit WholeCodes(const uint32_t* words) : words(words) {}
    typename V::Int at(int64_t group, int half) const { return V::at(words, group * 2 + half); }
};

// Codes of 4 bits: a word holds those of two groups.
template <class V, class Sums>
struct HalfCodes : Sums {
    const uint32_t* words;
    explicit HalfCodes(const uint32_t* words) : words(words) {}
    typename V::Int at(int64_t group, int half) const {
        const auto both = V::at(words, group / 2 * 2 + half);
        return group % 2 == 0 ? V::even(both) : V::odd(both);
    }
};

// Makes whole codes of a panel's half codes.
template <class V>
void unpack(const uint32_t* words, int64_t count, uint32_t* out) {
    for (int64_t word = 0; word < count; word++)
        for (int half = 0; half < 2; half++) {
            const auto both = V::at(words, 2 * word + half);
            V::put(out, 4 * word + half, V::even(both));
            V::put(out, 4 * word + 2 + half, V::odd(both));
        }
}

// `R` rows by one panel. `Codes` gives the codes of a group for the first and the second half of the panel.
template <class V, class Codes, int R>
inline void tile(const Matrix& matrix, const Rows& rows, int64_t row, int64_t panel, const Codes& codes, float* out) {
    using Float = typename V::Float;
    const int64_t blocks = matrix.blocks(), groups = matrix.block / kGroup;
    const float* scales = matrix.scales + panel * blocks * matrix.width;
    const uint8_t* zero_points = matrix.zero_points == nullptr ? nullptr : matrix.zero_points + panel * blocks * matrix.width;
    const int8_t* left = rows.codes + row * matrix.inner;
    Float found[R][2];
    for (int r = 0; r < R; r++) found[r][0] = found[r][1] = V::zero();
    for (int64_t block = 0; block < blocks; block++) {
        typename V::Int sum[R][2];
        for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = V::repeat(rows.starts[(row + r) * blocks + block]);
        for (int64_t begin = 0; begin < groups; begin += kChain) {
            typename Codes::Partial partial[R][2];
            for (int r = 0; r < R; r++)
                for (int half = 0; half < 2; half++) partial[r][half] = Codes::begin(sum[r][half]);
            auto add = [&](int64_t group) __attribute__((always_inline)) {
                const auto first = codes.at(block * groups + group, 0), second = codes.at(block * groups + group, 1);
#pragma GCC unroll 8
                for (int r = 0; r < R; r++) {
                    const auto others = V::repeat(group_at(left + r * matrix.inner + (block * groups + group) * kGroup));
                    partial[r][0] = Codes::add(partial[r][0], first, others);
                    partial[r][1] = Codes::add(partial[r][1], second, others);
                }
            };
#pragma GCC unroll 8
            for (int64_t group = begin; group < begin + kChain; group++) add(group);
            for (int r = 0; r < R; r++)
                for (int half = 0; half < 2; half++) sum[r][half] = Codes::end(sum[r][half], partial[r][half]);
        }
        for (int half = 0; half < 2; half++) {
            const Float scale = V::load(scales + block * matrix.width + half * V::kLanes);
            for (int r = 0; r < R; r++) {
                const Float both = V::times(scale, V::repeat(rows.scales[(row + r) * blocks + block]));
                found[r][half] = V::add_product(V::to_float(sum[r][half]), both, found[r][half]);
            }
            if (zero_points != nullptr) {
                const Float zero_point = V::times(V::load(zero_points + block * matrix.width + half * V::kLanes), scale);
                for (int r = 0; r < R; r++)
                    found[r][half] =
                        V::subtract_product(V::repeat(rows.sums[(row + r) * blocks + block]), zero_point, found[r][half]);
            }
        }
    }
    for (int r = 0; r < R; r++)
        for (int half = 0; half < 2; half++) {
            const int64_t column = panel * matrix.width + half * V::kLanes;
            V::store(out + (row + r) * matrix.columns + column, found[r][half], matrix.columns - column);
        }
}

// The same for a number of rows that is known at run time, at most `R`.
template <class V, class Codes, int R>
inline void tile_of(int64_t count, const Matrix& matrix, const Rows& rows, int64_t row, int64_t panel, const Codes& codes, float* out) {
    if (count == R) return tile<V, Codes, R>(matrix, rows, row, panel, codes, out);
    if constexpr (R > 1) tile_of<V, Codes, R - 1>(count, matrix, rows, row, panel, codes, out);
}

// All rows by one panel, in tiles of nearly the same size.
template <class V, class Codes>
inline void tiles(const Matrix& matrix, const Rows& rows, int64_t panel, const Codes& codes, float* out) {
    const int64_t parts = (rows.count + V::kRows - 1) / V::kRows;
    for (int64_t part = 0; part < parts; part++) {
        const int64_t row = rows.count * part / parts, next = rows.count * (part + 1) / parts;
        tile_of<V, Codes, V::kRows>(next - row, matrix, rows, row, panel, codes, out);
    }
}

// Memory of a thread, kept from run to run. No type of the library's: what is compiled here uses instructions that only those who
// have asked for this form may meet.
struct Scratch {
    uint32_t* memory = nullptr;
    size_t count = 0;

    ~Scratch() { std::free(memory); }

    // Memory for `wanted` words; null if there is none.
    uint32_t* get(size_t wanted) {
        if (count < wanted) {
            std::free(memory);
            memory = static_cast<uint32_t*>(std::aligned_alloc(64, (wanted * sizeof(uint32_t) + 63) / 64 * 64));
            count = memory == nullptr ? 0 : wanted;
        }
        return memory;
    }
};

template <class V>
void multiply(const Matrix& matrix, const Rows& rows, int64_t panel, float* out) {
    const uint32_t* words = matrix.codes + panel * matrix.words() * matrix.width;
    if (matrix.bits == 8) return tiles<V>(matrix, rows, panel, WholeCodes<V, typename V::ByteSums>{words}, out);
    static thread_local Scratch scratch;
    uint32_t* unpacked = rows.count <= kFewRows ? nullptr : scratch.get(2 * matrix.words() * matrix.width);
    if (unpacked == nullptr) return tiles<V>(matrix, rows, panel, HalfCodes<V, typename V::NibbleSums>{words}, out);
    unpack<V>(words, matrix.words(), unpacked);
    tiles<V>(matrix, rows, panel, WholeCodes<V, typename V::NibbleSums>{unpacked}, out);
}

// Rounds one row, 8 numbers at a time.
template <class V>
void round_row(const Matrix& matrix, const float* numbers, int64_t row, const Rows& rows) {
    const int64_t blocks = matrix.blocks();
    const int32_t middle = matrix.zero_points != nullptr ? 0 : matrix.bits == 8 ? 128 : 8;
    const int32_t start = (matrix.bits == 8 ? V::ByteSums::kOffset : 0) - middle;
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256i order = matrix.bits == 8 ? _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7) : _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    for (int64_t block = 0; block < blocks; block++) {
        const float* source = numbers + block * matrix.block;
        int8_t* target = rows.codes + row * matrix.inner + block * matrix.block;
        __m256 largest = _mm256_setzero_ps(), unordered = _mm256_setzero_ps();
        for (int64_t k = 0; k < matrix.block; k += 8) {
            const __m256 here = _mm256_loadu_ps(source + k);
            largest = _mm256_max_ps(_mm256_andnot_ps(sign, here), largest);
            unordered = _mm256_or_ps(unordered, _mm256_cmp_ps(here, here, _CMP_UNORD_Q));
        }
        __m128 most = _mm_max_ps(_mm256_castps256_ps128(largest), _mm256_extractf128_ps(largest, 1));
        most = _mm_max_ps(most, _mm_movehl_ps(most, most));
        most = _mm_max_ss(most, _mm_movehdup_ps(most));
        const float top = _mm_cvtss_f32(most), scale = top / 127.0f;
        rows.scales[row * blocks + block] = scale;
        rows.sums[row * blocks + block] = 0;
        rows.starts[row * blocks + block] = 0;
        if (_mm256_movemask_ps(unordered) != 0 || !(top <= std::numeric_limits<float>::max()) || top < kSmallest) {
            if (!(top < kSmallest)) rows.scales[row * blocks + block] = std::numeric_limits<float>::quiet_NaN();
            std::memset(target, 0, matrix.block);
            continue;
        }
        const __m256 inverse = _mm256_set1_ps(127.0f / top);
        __m256i sums = _mm256_setzero_si256();
        for (int64_t k = 0; k < matrix.block; k += 8) {
            const __m256i codes = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(source + k), inverse));
            sums = _mm256_add_epi32(sums, codes);
            const __m256i placed = _mm256_permutevar8x32_epi32(codes, order);
            const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(placed), _mm256_extracti128_si256(placed, 1));
            _mm_storel_epi64(reinterpret_cast<__m128i*>(target + k), _mm_packs_epi16(words, words));
        }
        __m128i total = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
        total = _mm_add_epi32(total, _mm_unpackhi_epi64(total, total));
        const int32_t sum = _mm_cvtsi128_si32(_mm_add_epi32(total, _mm_shuffle_epi32(total, 1)));
        rows.sums[row * blocks + block] = scale * static_cast<float>(sum);
        rows.starts[row * blocks + block] = start * sum;
    }
}

template <class V>
constexpr Form form(const char* name) {
    return Form{name, 2 * V::kLanes, round_row<V>, multiply<V>};
}

}  // namespace
}  // namespace textgen
