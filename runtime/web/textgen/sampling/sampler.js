/**
 * The whole chain from a row of logits to a token, in the order of Python's `sampling.sampler`: repetition penalty, temperature,
 * top-k, top-p and min-p, then the most likely token or a draw. Python's other penalties, rules and functions are not here.
 */

import { draw, truncate } from "./draw.js";
import { mostLikely } from "./numbers.js";

/** @import { GenerationConfig } from "../options/generation_config.js" */

/**
 * Choose the next id by logits [vocabulary], which are not changed; raises `ModelError` if they are not numbers.
 * @param {Float32Array} logits
 * @param {GenerationConfig} config
 * @param {object} text
 * @param {readonly number[]} text.promptIds
 * @param {readonly number[]} text.tokenIds the new ids so far
 * @param {number} [text.sample] index of the text, where one prompt has several texts
 */
export function chooseToken(logits, config, { promptIds, tokenIds, sample = 0 }) {
  const penalty = config.repetition_penalty;
  const scores = penalty === 1 ? logits : penaliseRepetition(logits, new Set([...promptIds, ...tokenIds]), penalty);
  const best = mostLikely(scores);
  if (config.temperature === 0) return best;
  return draw(truncate(scores, config), { seed: config.seed, sample, step: tokenIds.length });
}

/**
 * New logits: positive ones of `ids` are divided by `penalty`, and negative ones multiplied by it.
 * @param {Float32Array} logits
 * @param {ReadonlySet<number>} ids
 * @param {number} penalty
 */
function penaliseRepetition(logits, ids, penalty) {
  const factor = Math.fround(penalty);
  const scores = Float32Array.from(logits);
  for (const id of ids) scores[id] = scores[id] < 0 ? scores[id] * factor : scores[id] / factor;
  return scores;
}
