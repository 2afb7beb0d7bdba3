/**
 * Replays a package's golden runs, to check that it computes the same here as where it was exported, as Python's `verify`.
 *
 * The golden ids are fed whatever the model would choose, the prompt in two parts and the rest token by token. A golden id that
 * is no longer the most likely one still counts as right if its logit is close to the largest, measured by the certificate's
 * error.
 */

import { argmax, largest } from "./sampling/numbers.js";

/** @import { Decoder } from "./inference/decoder.js" */
/** @import { GoldenRun, Manifest } from "./package/manifest.js" */
/** @import { Model } from "./model.js" */

/** The allowed gap as a multiple of the largest logits error in the certificate. */
const MARGIN = 3;
/** Lowest limit of the allowed gap, relative to the largest logit: float32 sums in another order may differ by as much. */
const SMALLEST_GAP = 1e-5;

/**
 * The result of one golden run.
 * @typedef {object} Replay
 * @property {number} prompt_tokens
 * @property {number} new_tokens
 * @property {number} same new tokens that are still the most likely ones
 * @property {number} largest_gap largest difference between the largest logit and the golden id's, relative to the largest logit
 * @property {number | null} first_difference index of the first new token with a gap above `allowed_gap`
 * @property {number} allowed_gap
 * @property {boolean} is_right whether all gaps are allowed
 */

/**
 * Replay all golden runs; `right` of `total` are right.
 *
 * `isExact`: products are computed in float32 here, as in WebAssembly, so the continuations in that arithmetic are the right ones.
 * @param {Model} model
 * @param {boolean} isExact
 * @param {(done: number, total: number) => void} [onProgress] called after each run
 * @returns {Promise<{ right: number, total: number, runs: Replay[] }>}
 */
export async function replayGolden(model, isExact, onProgress) {
  const release = model.take();
  try {
    const recorded = model.manifest.golden ?? [];
    const runs = [];
    for (const run of recorded) {
      runs.push(await replay(model.decoder, model.manifest, isExact ? exactRun(run) : run));
      onProgress?.(runs.length, recorded.length);
    }
    return { right: runs.filter((run) => run.is_right).length, total: runs.length, runs };
  } finally {
    release();
  }
}

/** A run with the continuation in exact arithmetic. @param {GoldenRun} run @returns {GoldenRun} */
export function exactRun(run) {
  return run.exact_ids?.length ? { prompt_ids: run.prompt_ids, new_ids: run.exact_ids } : run;
}

/**
 * Feed one golden run from an empty cache, and compare.
 * @param {Decoder} decoder
 * @param {Manifest} manifest
 * @param {GoldenRun} run
 * @returns {Promise<Replay>}
 */
export async function replay(decoder, manifest, { prompt_ids: promptIds, new_ids: newIds }) {
  decoder.hold(decoder.nothing());
  const cut = Math.floor(promptIds.length / 3);
  const parts = [promptIds.slice(0, cut), promptIds.slice(cut)].filter((part) => part.length);
  /** @type {Float32Array} */
  let logits = new Float32Array();
  for (const part of parts) logits = await decoder.feed(part);
  const allowed = Math.max(MARGIN * (manifest.certificate?.["largest_logits_error"] ?? 0), SMALLEST_GAP);
  const gaps = [];
  let same = 0;
  for (const [index, id] of newIds.entries()) {
    if (index) logits = await decoder.feed([newIds[index - 1]]);
    if (argmax(logits) === id) same++;
    gaps.push((largest(logits) - logits[id]) / largest(logits.map(Math.abs)));
  }
  const wrong = gaps.findIndex((gap) => !(gap <= allowed)); // NaN is wrong too
  return {
    prompt_tokens: promptIds.length,
    new_tokens: newIds.length,
    same,
    largest_gap: Math.max(...gaps),
    first_difference: wrong < 0 ? null : wrong,
    allowed_gap: allowed,
    is_right: wrong < 0,
  };
}
