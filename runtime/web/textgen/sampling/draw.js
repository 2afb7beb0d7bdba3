/**
 * From one row of logits to one token id: temperature, truncation, then a draw, as Python's `sampling.draw`.
 *
 * Arrays in, arrays out: no state, no clock. A draw depends only on its place (seed, sample, step, attempt).
 */

import { largest, mostLikely, pick, softmax } from "./numbers.js";
import { uniform } from "./philox.js";
import { minPIds, topKIds, topNSigmaIds, topPIds, typicalPIds, xtcIds } from "./truncation.js";

/** @import { GenerationConfig } from "../options/generation_config.js" */
/** @import { Place } from "./philox.js" */

/** Probabilities per partial sum in the search for the drawn index; it must be Python's, as the sums round. */
const BLOCK = 512;
/** Number of the step's second random number, which decides whether XTC applies. */
const COIN = 1;

/**
 * The ids that may be drawn after a stage, with their logits.
 * @typedef {object} Candidates
 * @property {string} stage the option that this stage applied
 * @property {Int32Array | null} ids ascending; null: the whole vocabulary
 * @property {Float32Array} scores logits of these ids; -Infinity for ids that an earlier stage banned
 */

/**
 * The candidates after temperature and each truncation that is switched on, in order.
 *
 * `logits` [vocabulary] is not changed. At temperature 0 the only stage leaves the most likely id. Raises `ModelError` if the
 * logits are not numbers.
 * @param {Float32Array} logits
 * @param {GenerationConfig} config
 * @param {Place} place
 * @returns {Generator<Candidates, void, void>}
 */
export function* truncate(logits, config, place) {
  const best = mostLikely(logits);
  if (config.temperature === 0) {
    yield { stage: "temperature", ids: Int32Array.of(best), scores: Float32Array.of(logits[best]) };
    return;
  }
  /** @type {Candidates} */
  let left = { stage: "temperature", ids: null, scores: applyTemperature(logits, config.temperature) };
  yield left;
  /** @type {[string, boolean, (scores: Float32Array) => Int32Array][]} */
  const samplers = [
    ["top_k", config.top_k > 0, (scores) => topKIds(scores, config.top_k)],
    ["top_p", config.top_p < 1, (scores) => topPIds(scores, config.top_p)],
    ["min_p", config.min_p > 0, (scores) => minPIds(scores, config.min_p)],
    ["typical_p", config.typical_p < 1, (scores) => typicalPIds(scores, config.typical_p)],
    ["top_n_sigma", config.top_n_sigma > 0, (scores) => topNSigmaIds(scores, config.top_n_sigma)],
    ["xtc", xtcApplies(config, place), (scores) => xtcIds(scores, config.xtc_threshold)],
  ];
  for (const [stage, isOn, keep] of samplers) {
    if (isOn) {
      left = narrowed(left, stage, keep(left.scores));
      yield left;
    }
  }
}

/**
 * The candidates at some indices of earlier ones.
 * @param {Candidates} left
 * @param {string} stage
 * @param {Int32Array} kept
 * @returns {Candidates}
 */
export function narrowed(left, stage, kept) {
  const before = left.ids;
  return { stage, ids: before === null ? kept : kept.map((index) => before[index]), scores: pick(left.scores, kept) };
}

/**
 * Whether XTC applies at this place: it does with the probability `xtc_probability`.
 * @param {GenerationConfig} config
 * @param {Place} place
 */
function xtcApplies(config, place) {
  return config.xtc_probability > 0 && uniform(place, COIN) < config.xtc_probability;
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
