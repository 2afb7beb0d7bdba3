/**
 * From one row of logits to one token id: temperature, truncation, then a draw, as Python's `sampling.draw`.
 *
 * Arrays in, arrays out: no state, no clock. A draw depends only on its place (seed, sample, step).
 */

import { largest, pick, softmax } from "./numbers.js";
import { uniform } from "./philox.js";
import { minPIds, topKIds, topPIds } from "./truncation.js";

/** @import { GenerationConfig } from "../options/generation_config.js" */
/** @import { Place } from "./philox.js" */

/** Probabilities per partial sum in the search for the drawn index; it must be Python's, as the sums round. */
const BLOCK = 512;

/**
 * The ids that may be drawn, with their logits.
 * @typedef {object} Candidates
 * @property {Int32Array | null} ids ascending; null: the whole vocabulary
 * @property {Float32Array} scores logits of these ids
 */

/**
 * The candidates after temperature, which is above 0, and each truncation that is switched on, in order.
 * @param {Float32Array} logits [vocabulary], which are not changed
 * @param {GenerationConfig} config
 * @returns {Candidates}
 */
export function truncate(logits, config) {
  /** @type {Candidates} */
  let left = { ids: null, scores: applyTemperature(logits, config.temperature) };
  /** @type {[boolean, (scores: Float32Array) => Int32Array][]} */
  const samplers = [
    [config.top_k > 0, (scores) => topKIds(scores, config.top_k)],
    [config.top_p < 1, (scores) => topPIds(scores, config.top_p)],
    [config.min_p > 0, (scores) => minPIds(scores, config.min_p)],
  ];
  for (const [isOn, keep] of samplers) {
    if (!isOn) continue;
    const kept = keep(left.scores);
    const before = left.ids;
    left = { ids: before === null ? kept : kept.map((index) => before[index]), scores: pick(left.scores, kept) };
  }
  return left;
}

/** Draw one id according to its probability. @param {Candidates} left @param {Place} place */
export function draw(left, place) {
  // In the order of ids, not of probabilities: noise in the logits may swap two ranks, which would move the boundaries.
  const index = indexAt(softmax(left.scores), uniform(place));
  return left.ids === null ? index : left.ids[index];
}

/**
 * Divide logits by a temperature above 0; if the division overflows, only the largest logit stays.
 * @param {Float32Array} logits
 * @param {number} temperature
 */
export function applyTemperature(logits, temperature) {
  const divisor = Math.fround(temperature);
  const scaled = logits.map((logit) => logit / divisor);
  if (Number.isFinite(largest(scaled))) return scaled;
  const most = largest(logits);
  return logits.map((logit) => (logit === most ? 0 : -Infinity));
}

/**
 * The index whose share of the interval [0, 1) contains `position`; an index of probability 0 has no share.
 * @param {Float32Array} probabilities
 * @param {number} position
 */
export function indexAt(probabilities, position) {
  // First the block, then the index in it, as Python does: the sums are made in the same order.
  const ends = [];
  let total = 0;
  for (let start = 0; start < probabilities.length; start += BLOCK) {
    let part = 0;
    for (const each of probabilities.subarray(start, start + BLOCK)) part += each;
    ends.push((total += part));
  }
  const target = position * total;
  const block = ends.findIndex((end) => end > target);
  const start = block * BLOCK;
  const inside = [];
  let sum = 0;
  for (const each of probabilities.subarray(start, start + BLOCK)) inside.push((sum += each));
  // The two sums may round differently, so the target is kept just below the end of the block.
  const rest = Math.min(target - (block > 0 ? ends[block - 1] : 0), justBelow(sum));
  return start + inside.findIndex((end) => end > rest);
}

/** The next smaller float64 of a number above 0. @param {number} value */
function justBelow(value) {
  const bits = new BigInt64Array(Float64Array.of(value).buffer);
  bits[0] -= 1n;
  return new Float64Array(bits.buffer)[0];
}
