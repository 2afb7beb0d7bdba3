// What the products of this library read and write, and the forms of them for one set of instructions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace textgen {

// The weights of MatMulNBits, repacked. Codes are unsigned, in words of 32 bits: 8 of 4 bits, or 4 of 8 bits, along the inner size.
// A panel is `width` columns (rows of the operator's B): word after word along the inner size, each for all columns of the panel.
struct Matrix {
    int64_t columns = 0;
    int64_t inner = 0;
    int bits = 4;
    int64_t block = 32;  // codes that share a scale
    int64_t width = 0;
    const uint32_t* codes = nullptr;      // [panels][inner * bits / 32][width]
    const float* scales = nullptr;        // [panels][inner / block][width]
    const uint8_t* zero_points = nullptr; // the same; null if all are the middle: 8, or 128

    int64_t words() const { return inner * bits / 32; }
    int64_t blocks() const { return inner / block; }
    int64_t panels() const { return (columns + width - 1) / width; }
};

// Rows of activations, each block rounded to 8 bits by its largest number, as MatMulNBits does at accuracy level 4.
// At 4 bits the codes are in the order of `Matrix`: of each 8, those of even places before the others.
struct Rows {
    int64_t count = 0;
    int8_t* codes = nullptr;    // [count][inner]
    float* scales = nullptr;    // [count][blocks]
    float* sums = nullptr;      // [count][blocks]: the sum of the codes times the scale
    int32_t* starts = nullptr;  // [count][blocks]: what a sum of products begins with, so that codes count from the middle
};

// The same arithmetic for each set of instructions, to the last bit: sums of whole numbers, then one rounding for each block in
// the order of blocks. So no result depends on the processor, nor on the rows that are computed together.
struct Form {
    const char* name;
    int64_t width;  // columns of a panel
    void (*round)(const Matrix&, const float* numbers, int64_t row, const Rows&);
    void (*multiply)(const Matrix&, const Rows&, int64_t panel, float* out);  // one panel; out: [count][columns]
};

extern const Form kAvx2;
extern const Form kAvxVnni;
extern const Form kAvx512Vnni;

}  // namespace textgen
