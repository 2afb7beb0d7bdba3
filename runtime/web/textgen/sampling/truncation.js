/**
 * Truncation samplers: each takes logits [tokens] and returns the indices, ascending, of the tokens that may still be drawn.
 *
 * At least one logit is finite; -Infinity marks a token that an earlier stage banned. The rules, and their papers, are those of
 * Python's `sampling.truncation`.
 */

import { indicesWhere, kthLargest, largest, pick, softmax, sum } from "./numbers.js";

/** Tokens that are sorted first in the search for the nearest ones. */
const FEW = 1024;

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

/**
 * Keep the tokens whose surprise is nearest to the entropy, until their probabilities sum to `p`, and all at the same distance.
 * @param {Float32Array} logits
 * @param {number} p
 */
export function typicalPIds(logits, p) {
  const probabilities = softmax(logits);
  const surprise = Float32Array.from(probabilities, (probability) => -Math.log(probability));
  let entropy = 0;
  for (let index = 0; index < surprise.length; index++) {
    if (probabilities[index] > 0) entropy += Math.fround(probabilities[index] * surprise[index]);
  }
  const distance = surprise.map((each) => Math.abs(each - Math.fround(entropy)));
  const wanted = Math.fround(p);
  for (let count = Math.min(FEW, distance.length); ; count = Math.min(8 * count, distance.length)) {
    // A sort of all would take ten times as long, and more than a few are seldom needed.
    const border = -kthLargest(
      distance.map((each) => -each),
      count,
    );
    const nearest = indicesWhere(distance.length, (index) => distance[index] <= border);
    nearest.sort((one, other) => distance[one] - distance[other] || one - other);
    let cumulative = 0;
    for (const index of nearest) {
      cumulative += probabilities[index];
      if (Math.fround(cumulative) >= wanted) return indicesWhere(distance.length, (each) => distance[each] <= distance[index]);
    }
    if (count === distance.length) return indicesWhere(distance.length, () => true);
  }
}

/**
 * Keep logits at most `n` standard deviations below the largest; -Infinity does not count.
 * @param {Float32Array} logits
 * @param {number} n
 */
export function topNSigmaIds(logits, n) {
  const values = logits.filter(Number.isFinite);
  const mean = Math.fround(sum(values) / values.length);
  let squares = 0;
  for (const value of values) squares += Math.fround(value - mean) ** 2;
  const deviation = Math.fround(Math.sqrt(Math.fround(Math.fround(squares) / values.length)));
  const border = Math.fround(largest(values) - Math.fround(n * deviation));
  return indicesWhere(logits.length, (index) => Number.isFinite(logits[index]) && logits[index] >= border);
}

/**
 * Remove the most likely tokens: of those whose probability is at least `threshold`, keep only the least likely.
 * With fewer than two such tokens all stay; of equally likely ones the lowest index stays.
 * @param {Float32Array} logits
 * @param {number} threshold
 */
export function xtcIds(logits, threshold) {
  const probabilities = softmax(logits);
  const border = Math.fround(threshold);
  const likely = indicesWhere(logits.length, (index) => probabilities[index] >= border);
  if (likely.length < 2) return indicesWhere(logits.length, () => true);
  const least = likely.reduce((one, other) => (probabilities[other] < probabilities[one] ? other : one));
  return indicesWhere(logits.length, (index) => probabilities[index] < border || index === least);
}
