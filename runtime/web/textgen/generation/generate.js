/**
 * Generates a text, token by token, as Python's `Model.stream`: the same seed gives the same text wherever the logits agree.
 */

import { Continuation } from "./continuation.js";
import { OptionError } from "../errors.js";
import { nextTurn } from "./event_loop.js";
import { makeConfig } from "../options/generation_config.js";

/** @import { Chunk } from "./continuation.js" */
/** @import { OnProgress } from "../inference/decoder.js" */
/** @import { Model } from "../model.js" */
/** @import { Options } from "../options/generation_config.js" */

/**
 * @typedef {object} Control
 * @property {AbortSignal} [signal] ends the text between two tokens, or between two parts of the prompt
 * @property {OnProgress} [onProgress] called with the tokens of the prompt that have been fed, and all its tokens
 * @property {number} [sample] index of the text, where one prompt has several texts; Python's `sequences` have these
 */

/**
 * Stream the chunks of one text; raises errors of the prompt and the options at once, not at the first chunk.
 *
 * `prompt` is a text or a list of token ids. A model generates one text at a time. The result has `config`, the options that are
 * used with the seed that was drawn, `promptIds`, and the `pictures` that these name.
 * @param {Model} model
 * @param {string | readonly number[]} prompt
 * @param {Options} options
 * @param {Control} control
 */
export function generate(model, prompt, options = {}, { signal, onProgress, sample = 0 } = {}) {
  const { manifest, decoder, tokenizer } = model;
  const config = makeConfig(manifest.generation ?? {}, options);
  if (config.stop.length && tokenizer === null) {
    throw new OptionError("stop strings need a tokenizer, which this package does not have; stop by max_new_tokens");
  }
  const promptIds = model.encode(prompt);
  const pictures = decoder.pictures?.in(promptIds) ?? [];
  const text = new Continuation(manifest, tokenizer, promptIds, config, sample);

  /** Whether the text has to end now. */
  const isCancelled = async () => {
    await nextTurn();
    return signal?.aborted;
  };

  /** @returns {AsyncGenerator<Chunk, void, void>} */
  async function* chunks() {
    const release = model.take();
    try {
      let logits = null;
      for await (logits of decoder.prefill(promptIds, onProgress)) {
        if (await isCancelled()) return yield text.finish("cancelled");
      }
      for (;;) {
        const chunk = text.step(/** @type {Float32Array} */ (logits));
        yield chunk;
        if (chunk.finish_reason !== null) return;
        if (await isCancelled()) return yield text.finish("cancelled");
        logits = await decoder.feed([/** @type {number} */ (chunk.token_id)]);
      }
    } finally {
      release();
    }
  }

  return Object.assign(chunks(), { config, promptIds, pictures });
}
