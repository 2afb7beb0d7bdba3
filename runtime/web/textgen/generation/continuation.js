/**
 * One text during its generation: chooses the next token, turns tokens into text, and decides when to end.
 */

import { chooseToken } from "../sampling/sampler.js";
import { logprobOf, mostLikelyTokens } from "../inference/scoring.js";
import { StopMatcher } from "../text/stop_strings.js";
import { StreamDecoder } from "../text/stream_decoder.js";

/** @import { GenerationConfig } from "../options/generation_config.js" */
/** @import { Manifest } from "../package/manifest.js" */
/** @import { Alternative } from "../inference/scoring.js" */
/** @import { TextTokenizer } from "../text/tokenizer.js" */

/** @typedef {"eos" | "length" | "stop" | "context" | "cancelled"} FinishReason named as in Python */

/**
 * One step of a text.
 * @typedef {object} Chunk
 * @property {string} text text that is now certain; may be empty while a character or a stop string is undecided
 * @property {number | null} token_id null if the step has no token of the text: its end was chosen, or it was cancelled
 * @property {number | null} logprob of the token under the model itself; only with the option `logprobs`
 * @property {Alternative[]} alternatives the most likely tokens there, as many as `logprobs` asks for
 * @property {FinishReason | null} finish_reason why the text ended; on the last chunk
 */

/** The tokens after one prompt. */
export class Continuation {
  /**
   * @param {Manifest} manifest
   * @param {TextTokenizer | null} tokenizer
   * @param {readonly number[]} promptIds
   * @param {GenerationConfig} config
   * @param {number} sample index of the text, where one prompt has several texts
   */
  constructor(manifest, tokenizer, promptIds, config, sample) {
    this.config = config;
    this.promptIds = promptIds;
    this.eosIds = manifest.eos_ids;
    this.contextLength = manifest.geometry.context_length;
    /** @type {number[]} */
    this.tokenIds = [];
    this.piece = tokenizer ? (/** @type {number} */ id) => tokenizer.piece(id) : null;
    this.sample = sample;
    this.stream = tokenizer ? new StreamDecoder(tokenizer, promptIds) : null;
    this.stops = new StopMatcher(config.stop);
    const stops = new Set(config.stop);
    /** Stop strings that are one token, which may have no text, as control tokens have none. */
    this.stopIds = (tokenizer?.addedTokens ?? []).filter((token) => stops.has(token.content)).map((token) => token.id);
  }

  /**
   * Choose the next token by logits [vocabulary] and append it, unless it ends the text.
   * @param {Float32Array} logits
   * @returns {Chunk}
   */
  step(logits) {
    const id = chooseToken(logits, this.config, this);
    if (this.eosIds.includes(id)) return this.finish("eos");
    if (this.stopIds.includes(id)) return this.finish("stop");
    this.tokenIds.push(id);
    const text = this.stops.push(this.stream?.push(id) ?? "");
    /** @type {Chunk} */
    const chunk = { text, token_id: id, logprob: null, alternatives: [], finish_reason: null };
    const count = this.config.logprobs;
    if (count !== null) {
      chunk.logprob = logprobOf(logits, id);
      chunk.alternatives = mostLikelyTokens(logits, count, this.piece ?? ((each) => `<${each}>`));
    }
    if (this.stops.matched !== null) return this.finish("stop", chunk);
    if (this.tokenIds.length >= this.config.max_new_tokens) return this.finish("length", chunk);
    if (this.promptIds.length + this.tokenIds.length >= this.contextLength) return this.finish("context", chunk);
    return chunk;
  }

  /**
   * End the text; returns the last chunk, with the text that was held back up to a stop string.
   * @param {FinishReason} reason
   * @param {Chunk} chunk
   * @returns {Chunk}
   */
  finish(reason, chunk = { text: "", token_id: null, logprob: null, alternatives: [], finish_reason: null }) {
    const text = chunk.text + this.stops.push(this.stream?.flush() ?? "") + this.stops.flush();
    // A stop string is perhaps found only now that no more text can follow.
    return { ...chunk, text, finish_reason: this.stops.matched === null ? reason : "stop" };
  }
}
