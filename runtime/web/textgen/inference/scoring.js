/**
 * Log-probabilities under the model itself, before temperature and truncation.
 */

import { indicesWhere, kthLargest, largest } from "../sampling/numbers.js";

/**
 * A token that the model considered at one position.
 * @typedef {object} Alternative
 * @property {number} token_id
 * @property {string} text as a person sees it: `<0xE2>` for a byte that is no character by itself
 * @property {number} logprob natural-log probability
 */

/** log softmax(logits)[id], for logits [vocabulary]. @param {Float32Array} logits @param {number} id */
export function logprobOf(logits, id) {
  const most = largest(logits);
  let total = 0;
  for (const logit of logits) total += Math.fround(Math.exp(Math.fround(logit - most)));
  return Math.fround(logits[id] - most) - Math.log(total);
}

/**
 * The `count` most likely tokens, most likely first; of equal ones the lower id comes first.
 * @param {Float32Array} logits
 * @param {number} count
 * @param {(id: number) => string} piece
 * @returns {Alternative[]}
 */
export function mostLikelyTokens(logits, count, piece) {
  if (count === 0) return [];
  const border = kthLargest(logits, Math.min(count, logits.length));
  const ids = [...indicesWhere(logits.length, (id) => logits[id] >= border)];
  ids.sort((one, other) => logits[other] - logits[one] || one - other);
  const first = logprobOf(logits, ids[0]);
  return ids
    .slice(0, count)
    .map((id) => ({ token_id: id, text: piece(id), logprob: first + Math.fround(logits[id] - logits[ids[0]]) }));
}
