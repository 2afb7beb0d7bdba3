/**
 * Penalties: how the prompt and the text so far change the logits. Plain functions that change an array in place.
 *
 * `scores` are the logits [vocabulary] of the next token, `history` the ids of the prompt and of the text so far.
 */

/** e to this power is about the largest float32. */
const LARGEST_EXPONENT = 88;

/** Add a bias to the logit of each id. @param {Float32Array} scores @param {readonly (readonly [number, number])[]} biases */
export function addBiases(scores, biases) {
  for (const [id, bias] of biases) scores[id] += Math.fround(bias);
}

/** Set the logits of ids to -Infinity. @param {Float32Array} scores @param {Iterable<number>} ids */
export function ban(scores, ids) {
  for (const id of ids) scores[id] = -Infinity;
}

/**
 * Divide positive logits of `ids`, each listed once, by `penalty`, and multiply negative ones by it.
 * @param {Float32Array} scores
 * @param {Iterable<number>} ids
 * @param {number} penalty
 */
export function penaliseRepetition(scores, ids, penalty) {
  const factor = Math.fround(penalty);
  for (const id of ids) scores[id] = scores[id] < 0 ? scores[id] * factor : scores[id] / factor;
}

/**
 * Subtract `presence` once and `frequency` times the count from the logit of each id (OpenAI's formula).
 * @param {Float32Array} scores
 * @param {ReadonlyMap<number, number>} counts
 * @param {{ presence: number, frequency: number }} options
 */
export function penalisePresenceAndFrequency(scores, counts, { presence, frequency }) {
  for (const [id, count] of counts) {
    scores[id] -= Math.fround(Math.fround(presence) + Math.fround(Math.fround(frequency) * count));
  }
}

/**
 * The last id of each sequence whose other ids end the history: choosing it would complete the sequence.
 *
 * `idsCompletingSequences([5, 7, 8], [[7, 8, 9], [3], [5, 8, 1]])` is `[9, 3]`.
 * @param {readonly number[]} history
 * @param {readonly (readonly number[])[]} sequences
 */
export function idsCompletingSequences(history, sequences) {
  const found = [];
  for (const each of sequences) {
    const before = history.length - each.length + 1;
    if (before >= 0 && each.slice(0, -1).every((id, place) => history[before + place] === id)) found.push(each[each.length - 1]);
  }
  return found;
}

/**
 * Ids that would complete an n-gram of `size` ids that the history already contains.
 *
 * `idsCompletingNgrams([1, 2, 3, 1, 2], 3)` is the set of 3.
 * @param {readonly number[]} history
 * @param {number} size
 */
export function idsCompletingNgrams(history, size) {
  /** @type {Set<number>} */
  const found = new Set();
  for (let end = size - 2; end < history.length - 1; end++) {
    let same = 0;
    while (same < size - 1 && history[end - same] === history[history.length - 1 - same]) same++;
    if (same === size - 1) found.add(history[end + 1]);
  }
  return found;
}

/**
 * Penalise ids that would lengthen a repeat ("Don't Repeat Yourself", p-e-w 2024; the rule is llama.cpp's).
 *
 * A repeat is the longest suffix of the history, of at most `longest` ids, that occurs earlier too. If its length is at least
 * `allowedLength`, the logit of the id that followed it then is reduced by multiplier * base ** (length - allowedLength).
 * @param {Float32Array} scores
 * @param {readonly number[]} history
 * @param {{ multiplier: number, base: number, allowedLength: number, longest: number }} options
 */
export function penaliseDry(scores, history, { multiplier, base, allowedLength, longest }) {
  const most = base > 1 ? LARGEST_EXPONENT / Math.log(base) : Infinity;
  for (const [id, length] of repeatLengths(history, allowedLength, longest)) {
    scores[id] -= Math.fround(multiplier * base ** Math.min(length - allowedLength, most));
  }
}

/**
 * For each id that followed an earlier copy of a suffix of the history: the length of the longest such copy.
 *
 * `repeatLengths([1, 2, 3, 9, 2, 4, 1, 2], 1, 10)` has 4: 1 and 3: 2.
 * @param {readonly number[]} history
 * @param {number} shortest
 * @param {number} longest
 */
export function repeatLengths(history, shortest, longest) {
  /** @type {Map<number, number>} */
  const found = new Map();
  const last = history.length - 1;
  for (let end = 0; end < last; end++) {
    let length = 0;
    while (length < longest && length <= end && history[end - length] === history[last - length]) length++;
    if (length >= shortest && length > (found.get(history[end + 1]) ?? 0)) found.set(history[end + 1], length);
  }
  return found;
}
