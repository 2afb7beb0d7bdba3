/**
 * Mirostat 2: remove tokens whose surprise exceeds a moving limit, so that the surprise of the text stays near a target.
 *
 * Basu et al. 2021; as in Python and llama.cpp, the limit follows the surprise of the chosen token among the tokens that stayed.
 */

import { indicesWhere, softmax } from "./numbers.js";

/** The moving limit of one text, in bits. */
export class Mirostat {
  /** @param {{ tau: number, eta: number }} options */
  constructor({ tau, eta }) {
    this.tau = tau;
    this.eta = eta;
    this.limit = 2 * tau;
  }

  /**
   * Indices, ascending, of the tokens whose surprise is at most the limit; the most likely one is always kept.
   * @param {Float32Array} logits
   */
  kept(logits) {
    const surprise = surpriseOf(logits);
    const least = surprise.reduce((one, other) => Math.min(one, other), Infinity);
    const most = Math.max(Math.fround(this.limit), least);
    return indicesWhere(surprise.length, (index) => surprise[index] <= most);
  }

  /** Move the limit after a token with this surprise, in bits, was chosen. @param {number} surprise */
  update(surprise) {
    this.limit -= this.eta * (surprise - this.tau);
  }
}

/**
 * Surprise of each token in bits: minus the binary logarithm of its probability.
 * @param {Float32Array} logits
 */
export function surpriseOf(logits) {
  return softmax(logits).map((probability) => -Math.log2(probability));
}
