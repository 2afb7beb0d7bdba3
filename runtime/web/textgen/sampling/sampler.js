/**
 * The whole chain from a row of logits to a token, for one text, in the order of Python's `sampling.sampler`:
 *
 * logit bias, banned ids, repetition penalty, presence and frequency penalties, no-repeat n-gram, DRY, minimum number of tokens;
 * then temperature, top-k, top-p, min-p, typical-p, top-n-sigma, XTC and mirostat; then the most likely token or a draw. There
 * are no grammars and no functions of the caller here.
 */

import { draw, narrowed, truncate } from "./draw.js";
import { ModelError, OptionError } from "../errors.js";
import { History, SequenceBreakers } from "./history.js";
import { Mirostat, surpriseOf } from "./mirostat.js";
import { largest, mostLikely } from "./numbers.js";
import * as penalties from "./penalties.js";

/** @import { Candidates } from "./draw.js" */
/** @import { GenerationConfig } from "../options/generation_config.js" */

const NOTHING_LEFT = "nothing is left to choose from: the options together rule out every token; leave some out";

/** Chooses the tokens of one text, one after the other; `tokenIds` are always the new ids so far. */
export class Chooser {
  /**
   * @param {GenerationConfig} config
   * @param {object} text
   * @param {readonly number[]} text.promptIds matter to the penalties that read the prompt too
   * @param {readonly number[]} text.eosIds
   * @param {((id: number) => string) | null} [text.piece] the text of an id, for DRY
   * @param {number} [text.sample] index of the text, where one prompt has several texts
   */
  constructor(config, { promptIds, eosIds, piece = null, sample = 0 }) {
    this.config = config;
    this.eosIds = eosIds;
    this.sample = sample;
    this.history = new History(promptIds);
    this.never = config.bad_words_ids.filter((each) => each.length === 1).map((each) => each[0]);
    if (config.ignore_eos) this.never.push(...eosIds);
    this.sequences = config.bad_words_ids.filter((each) => each.length > 1);
    this.breakers = new SequenceBreakers(config.dry_sequence_breakers, piece);
    this.mirostat = config.mirostat ? new Mirostat({ tau: config.mirostat_tau, eta: config.mirostat_eta }) : null;
    /**
     * The candidates of the last choice: mirostat is updated with the token that was in fact appended.
     * @type {{ step: number, left: Candidates } | null}
     */
    this.last = null;
    this.remembers =
      this.sequences.length > 0 ||
      config.repetition_penalty !== 1 ||
      config.presence_penalty !== 0 ||
      config.frequency_penalty !== 0 ||
      config.no_repeat_ngram_size !== 0 ||
      config.dry_multiplier !== 0;
    this.changes = this.remembers || this.never.length > 0 || config.logit_bias.length > 0;
  }

  /**
   * Choose the next id by logits [vocabulary], which are not changed.
   *
   * Raises `ModelError` if the logits are not numbers, and `OptionError` if the options exclude every id.
   * @param {Float32Array} logits
   * @param {readonly number[]} tokenIds
   */
  choose(logits, tokenIds) {
    const scores = this.process(logits, tokenIds);
    try {
      return this.chooseAmong(scores, tokenIds);
    } catch (error) {
      const isEmpty = error instanceof ModelError && largest(scores) === -Infinity && Number.isFinite(largest(logits));
      throw isEmpty ? new OptionError(NOTHING_LEFT) : error;
    }
  }

  /**
   * Choose the next id by the scores that `process` returned.
   * @param {Float32Array} scores
   * @param {readonly number[]} tokenIds
   */
  chooseAmong(scores, tokenIds) {
    if (this.config.temperature === 0) return mostLikely(scores);
    const left = this.candidates(scores, tokenIds);
    if (this.mirostat) this.last = { step: tokenIds.length, left };
    return draw(left, this.place(tokenIds));
  }

  /** The place of the next random number. @param {readonly number[]} tokenIds */
  place(tokenIds) {
    return { seed: this.config.seed, sample: this.sample, step: tokenIds.length };
  }

  /**
   * The candidates after the last stage, for the scores that `process` returned.
   * @param {Float32Array} scores
   * @param {readonly number[]} tokenIds
   * @returns {Candidates}
   */
  candidates(scores, tokenIds) {
    const stages = [...truncate(scores, this.config, this.place(tokenIds))];
    const left = stages[stages.length - 1];
    if (!this.mirostat) return left;
    this.updateMirostat(this.mirostat, tokenIds);
    return narrowed(left, "mirostat", this.mirostat.kept(left.scores));
  }

  /**
   * Move mirostat's limit by the token that followed the last choice.
   * @param {Mirostat} mirostat
   * @param {readonly number[]} tokenIds
   */
  updateMirostat(mirostat, tokenIds) {
    const last = this.last;
    this.last = null;
    if (last === null || tokenIds.length <= last.step) return;
    const id = tokenIds[last.step];
    const index = last.left.ids === null ? id : last.left.ids.indexOf(id);
    if (index >= 0) mirostat.update(surpriseOf(last.left.scores)[index]);
  }

  /**
   * Apply every stage before temperature; returns a new array [vocabulary], or `logits` itself if no stage is on.
   * @param {Float32Array} logits
   * @param {readonly number[]} tokenIds
   */
  process(logits, tokenIds) {
    const config = this.config;
    const isEarly = tokenIds.length < config.min_new_tokens;
    if (!this.changes && !isEarly) return logits;
    const scores = Float32Array.from(logits);
    penalties.addBiases(scores, config.logit_bias);
    penalties.ban(scores, this.never);
    if (this.remembers) {
      this.history.sync(tokenIds);
      this.penalise(scores);
    }
    if (isEarly) penalties.ban(scores, this.eosIds);
    return scores;
  }

  /** Apply the stages that depend on the text so far. @param {Float32Array} scores */
  penalise(scores) {
    const { config, history } = this;
    penalties.ban(scores, penalties.idsCompletingSequences(history.ids, this.sequences));
    if (config.repetition_penalty !== 1) penalties.penaliseRepetition(scores, history.unique, config.repetition_penalty);
    if (config.presence_penalty || config.frequency_penalty) {
      const { presence_penalty: presence, frequency_penalty: frequency } = config;
      penalties.penalisePresenceAndFrequency(scores, history.counts, { presence, frequency });
    }
    if (config.no_repeat_ngram_size) {
      penalties.ban(scores, penalties.idsCompletingNgrams(history.ids, config.no_repeat_ngram_size));
    }
    if (config.dry_multiplier) {
      const ids = history.last(config.dry_penalty_last_n);
      penalties.penaliseDry(scores, ids, {
        multiplier: config.dry_multiplier,
        base: config.dry_base,
        allowedLength: config.dry_allowed_length,
        longest: this.breakers.sinceLast(ids),
      });
    }
  }
}
