/**
 * Numbers as NumPy computes them in float32: every result is rounded with `Math.fround`, sums are made in float64.
 *
 * A sum of float32 numbers in float64 is exact as long as they are within 29 binary digits of each other, so the order of the sum
 * does not matter in practice. `Math.exp` and `Math.log`, rounded to float32, are within half a unit in the last place; NumPy's own
 * functions are within one to four units, and differ between processors.
 */

import { ModelError } from "../errors.js";

/** The largest number; NaN if one is. @param {Float32Array} values */
export function largest(values) {
  let most = -Infinity;
  for (const value of values) {
    if (!(value <= most)) most = value;
    if (Number.isNaN(value)) return NaN;
  }
  return most;
}

/** The index of the largest number, the first of equal ones; NaN counts as the largest. @param {Float32Array} values */
export function argmax(values) {
  let best = 0;
  for (let index = 0; index < values.length; index++) {
    if (Number.isNaN(values[index])) return index;
    if (values[index] > values[best]) best = index;
  }
  return best;
}

/** The sum in float64. @param {Float32Array} values */
export function sum(values) {
  let total = 0;
  for (const value of values) total += value;
  return total;
}

/**
 * Probabilities [vocabulary] of logits, at least one of them finite.
 *
 * `softmax(Float32Array.of(0, 0, -Infinity))` is `[0.5, 0.5, 0]`.
 * @param {Float32Array} logits
 */
export function softmax(logits) {
  const most = largest(logits);
  const weights = new Float32Array(logits.length);
  for (let index = 0; index < logits.length; index++) weights[index] = Math.exp(Math.fround(logits[index] - most));
  const total = Math.fround(sum(weights));
  for (let index = 0; index < weights.length; index++) weights[index] /= total;
  return weights;
}

/**
 * The id of the largest logit, the lowest id of equal ones; raises `ModelError` unless that logit is finite.
 * @param {Float32Array} logits
 */
export function mostLikely(logits) {
  const best = argmax(logits);
  if (!Number.isFinite(logits[best])) {
    const found = logits[best] === -Infinity ? "-inf everywhere" : `${logits[best]} at id ${best}`;
    throw new ModelError(
      `the model's logits are no numbers to choose by (${found}); check the package with: onnx-textgen verify DIR`,
    );
  }
  return best;
}

/**
 * The k-th largest number, 1 <= k <= length; there is no NaN among them (Hoare's quickselect).
 * @param {Float32Array} values
 * @param {number} k
 */
export function kthLargest(values, k) {
  const work = Float32Array.from(values);
  const wanted = work.length - k;
  let low = 0;
  let high = work.length - 1;
  while (low < high) {
    const pivot = work[(low + high) >> 1];
    let left = low;
    let right = high;
    while (left <= right) {
      while (work[left] < pivot) left++;
      while (work[right] > pivot) right--;
      if (left <= right) {
        [work[left], work[right]] = [work[right], work[left]];
        left++;
        right--;
      }
    }
    if (wanted <= right) high = right;
    else if (wanted >= left) low = left;
    else break;
  }
  return work[wanted];
}

/** Indices, ascending, for which a condition holds. @param {number} length @param {(index: number) => boolean} holds */
export function indicesWhere(length, holds) {
  const found = [];
  for (let index = 0; index < length; index++) if (holds(index)) found.push(index);
  return Int32Array.from(found);
}

/** The values at some indices. @param {Float32Array} values @param {Int32Array} indices */
export function pick(values, indices) {
  return Float32Array.from(indices, (index) => values[index]);
}
