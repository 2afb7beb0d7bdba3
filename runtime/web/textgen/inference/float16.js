/** Half-precision numbers as float32: not every JavaScript engine has `Float16Array`. */

/** @param {Uint16Array} halves the bits @returns {Float32Array} */
export function float16ToFloat32(halves) {
  return Float32Array.from(halves, (bits) => {
    const sign = bits & 0x8000 ? -1 : 1;
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return exponent === 0 ? sign * fraction * 2 ** -24 : sign * (1024 + fraction) * 2 ** (exponent - 25);
  });
}
