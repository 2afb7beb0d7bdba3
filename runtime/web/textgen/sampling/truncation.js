/**
 * Truncation samplers: each takes logits [tokens] and returns the indices, ascending, of the tokens that may still be drawn.
 *
 * At least one logit is finite; -Infinity marks a token that an earlier stage banned. The rules, and their papers, are those of
 * Python's `sampling.truncation`.
 */

import { indicesWhere, kthLargest, largest, pick, softmax, sum } from "./numbers.js";

/**
 * Keep the k largest logits, and all that equal the smallest of them.
 * @param {Float32Array} logits
 * @param {number} k
 */
export function topKIds(logits, k) {
  const border = k >= logits.length ? -Infinity : kthLargest(logits, k);
  return indicesWhere(logits.length, (index) => logits[index] >= border);
}

/**
 * Keep the nucleus: all but the least likely tokens whose probabilities sum to at most 1 - p, and always the most likely one.
 * If logits at the border are equal, the higher ids stay.
 * @param {Float32Array} logits
 * @param {number} p
 */
export function topPIds(logits, p) {
  const probabilities = softmax(logits);
  // Those below (1 - p) / n sum to less than 1 - p: they are removed without a sort, nearly all of a large vocabulary.
  const clear = Math.fround(Math.min((1 - p) / logits.length, largest(probabilities)));
  const order = indicesWhere(logits.length, (index) => probabilities[index] >= clear);
  let cumulative = 0;
  const cutAlready = sum(probabilities) - sum(pick(probabilities, order));
  order.sort((one, other) => logits[one] - logits[other] || one - other);
  // Summed in float64 and compared in float32, like torch: that decides exact ties at the border.
  const removed = Math.fround(1 - p);
  let first = 0;
  for (; first < order.length - 1; first++) {
    cumulative += probabilities[order[first]];
    if (Math.fround(cutAlready + cumulative) > removed) break;
  }
  return order.slice(first).sort();
}

/**
 * Keep the tokens that are at least `p` times as likely as the most likely one.
 * @param {Float32Array} logits
 * @param {number} p
 */
export function minPIds(logits, p) {
  const probabilities = softmax(logits);
  const border = Math.fround(Math.fround(p) * largest(probabilities));
  return indicesWhere(logits.length, (index) => probabilities[index] >= border);
}
