/**
 * The random numbers: counter-based, so that a number depends only on its place, bit for bit as Python's `sampling.draw.uniform`.
 *
 * Philox 4x64-10, Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", in the form of NumPy's `Philox`, which adds
 * one to the counter before the first block.
 */

const MASK = (1n << 64n) - 1n;
const MULTIPLIERS = /** @type {const} */ ([0xd2e7470ee14c6c93n, 0xca5a826395121157n]);
const WEYL = /** @type {const} */ ([0x9e3779b97f4a7c15n, 0xbb67ae8584caa73bn]);
const ROUNDS = 10;

/**
 * The position of a random number among all that are ever drawn.
 * @typedef {object} Place
 * @property {number | bigint} seed
 * @property {number} [sample] index of the text, where one prompt has several texts
 * @property {number} [step] tokens in the text so far
 */

/** A number in [0, 1) that depends only on the place. @param {Place} place */
export function uniform({ seed, sample = 0, step = 0 }) {
  const [first] = philox([BigInt(seed), 0n], [BigInt(step) + 1n, BigInt(sample), 0n, 0n]);
  return Number(first >> 11n) * 2 ** -53;
}

/**
 * One block of four 64-bit numbers.
 * @param {[bigint, bigint]} key
 * @param {bigint[]} counter four numbers
 * @returns {[bigint, bigint, bigint, bigint]}
 */
export function philox(key, counter) {
  let [a, b, c, d] = /** @type {[bigint, bigint, bigint, bigint]} */ (counter);
  let [k, l] = key;
  for (let round = 0; round < ROUNDS; round++) {
    const one = MULTIPLIERS[0] * a;
    const two = MULTIPLIERS[1] * c;
    [a, b, c, d] = [(two >> 64n) ^ b ^ k, two & MASK, (one >> 64n) ^ d ^ l, one & MASK];
    k = (k + WEYL[0]) & MASK;
    l = (l + WEYL[1]) & MASK;
  }
  return [a, b, c, d];
}
