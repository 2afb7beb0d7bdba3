/**
 * The options of one call, with the names, limits and defaults of Python's `GenerationConfig`.
 *
 * Beam search, several texts per prompt, drafts, grammars, adapters and functions of the caller are Python's alone; they are
 * refused by name.
 */

import { OptionError, PackageError, shown } from "../errors.js";
import { checkEffect } from "./effects.js";

/**
 * @typedef {object} GenerationConfig
 * @property {number} max_new_tokens
 * @property {number} min_new_tokens
 * @property {number} temperature
 * @property {number} top_k
 * @property {number} top_p
 * @property {number} min_p
 * @property {number} typical_p
 * @property {number} top_n_sigma
 * @property {number} xtc_probability
 * @property {number} xtc_threshold
 * @property {number} mirostat
 * @property {number} mirostat_tau
 * @property {number} mirostat_eta
 * @property {number} repetition_penalty
 * @property {number} presence_penalty
 * @property {number} frequency_penalty
 * @property {number} no_repeat_ngram_size
 * @property {number} dry_multiplier
 * @property {number} dry_base
 * @property {number} dry_allowed_length
 * @property {number} dry_penalty_last_n
 * @property {readonly string[]} dry_sequence_breakers
 * @property {readonly (readonly [number, number])[]} logit_bias pairs of id and bias; a mapping is taken too
 * @property {readonly (readonly number[])[]} bad_words_ids
 * @property {number | bigint} seed drawn if the caller gives none
 * @property {readonly string[]} stop
 * @property {boolean} ignore_eos
 * @property {number | null} max_time seconds
 * @property {"stop" | "error"} context_limit
 * @property {number | null} logprobs
 */

/**
 * @typedef {Partial<Omit<GenerationConfig, "logit_bias" | "stop"> & { logit_bias: object, stop: string | readonly string[] }>} Options
 */

/** @typedef {(name: string, value: unknown) => unknown} Check */

const MAX_SEED = 2n ** 63n - 1n;
const MAX_IDS = 100_000;

/** Each option's default and check. @type {Record<keyof GenerationConfig, [unknown, Check]>} */
const OPTIONS = {
  max_new_tokens: [256, whole(1)],
  min_new_tokens: [0, whole(0)],
  temperature: [0.8, real("from 0 (always the most likely) to 100", (each) => 0 <= each && each <= 100)],
  top_k: [0, whole(0)],
  top_p: [1, real("above 0, up to 1", (each) => 0 < each && each <= 1)],
  min_p: [0, real("from 0 to 1", (each) => 0 <= each && each <= 1)],
  typical_p: [1, real("above 0, up to 1", (each) => 0 < each && each <= 1)],
  top_n_sigma: [0, real("from 0 (off) to 100", (each) => 0 <= each && each <= 100)],
  xtc_probability: [0, real("from 0 (off) to 1", (each) => 0 <= each && each <= 1)],
  xtc_threshold: [0.1, real("from 0 to 0.5", (each) => 0 <= each && each <= 0.5)],
  mirostat: [0, oneOf(0, 2)],
  mirostat_tau: [5, real("above 0, up to 100", (each) => 0 < each && each <= 100)],
  mirostat_eta: [0.1, real("above 0, up to 1", (each) => 0 < each && each <= 1)],
  repetition_penalty: [1, real("above 0, up to 100", (each) => 0 < each && each <= 100)],
  presence_penalty: [0, real("from -2 to 2", (each) => -2 <= each && each <= 2)],
  frequency_penalty: [0, real("from -2 to 2", (each) => -2 <= each && each <= 2)],
  no_repeat_ngram_size: [0, whole(0)],
  dry_multiplier: [0, real("from 0 (off) to 100", (each) => 0 <= each && each <= 100)],
  dry_base: [1.75, real("from 1 to 100", (each) => 1 <= each && each <= 100)],
  dry_allowed_length: [2, whole(1)],
  dry_penalty_last_n: [-1, whole(-1)],
  dry_sequence_breakers: [["\n", ":", '"', "*"], strings(64, 64)],
  logit_bias: [[], biases],
  bad_words_ids: [[], idLists],
  seed: [null, seed],
  stop: [[], strings(16, 256)],
  ignore_eos: [false, oneOf(false, true)],
  max_time: [null, real("of seconds above 0", (each) => 0 < each && each < Infinity)],
  context_limit: ["stop", oneOf("stop", "error")],
  logprobs: [null, whole(0, 64)],
};

/** Options that only Python has. */
const PYTHON_ONLY = new Set(
  `num_return_sequences best_of num_beams length_penalty early_stopping n_keep
  prompt_lookup_num_tokens max_matching_ngram_size num_assistant_tokens assistant_confidence_threshold draft_verification loop_guard
  json_schema regex grammar adapter logits_processor stopping_criterion`.split(/\s+/),
);

/**
 * Merge options: the caller's first, then the package's defaults (`manifest.generation`), then those above; draws a seed if none is
 * given. An option that is null or undefined counts as not given.
 *
 * Raises `OptionError` for an option that is unknown, unusable or without effect, and `PackageError` for an unusable default.
 * @param {Record<string, unknown>} defaults
 * @param {Options} options
 * @returns {GenerationConfig}
 */
export function makeConfig(defaults, options) {
  const config = /** @type {Record<string, unknown>} */ ({});
  for (const [name, [value]] of Object.entries(OPTIONS)) config[name] = value;
  try {
    Object.assign(config, checked(defaults));
  } catch (error) {
    if (!(error instanceof OptionError)) throw error;
    throw new PackageError(`the package has an unusable generation default: ${error.message}; export the model again`);
  }
  const asked = checked(options);
  Object.assign(config, asked);
  const made = /** @type {GenerationConfig} */ (/** @type {unknown} */ (config));
  checkEffect(made, Object.keys(asked));
  if (made.seed === null) made.seed = crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;
  return made;
}

/**
 * The given options, each checked.
 * @param {object} options
 * @returns {Record<string, unknown>}
 */
function checked(options) {
  const found = /** @type {Record<string, unknown>} */ ({});
  for (const [name, value] of Object.entries(options)) {
    if (value === null || value === undefined) continue;
    if (PYTHON_ONLY.has(name)) throw new OptionError(`${name} exists only in Python; leave it out`);
    if (!Object.hasOwn(OPTIONS, name)) {
      throw new OptionError(`there is no option ${shown(name)}; the options are ${Object.keys(OPTIONS).join(", ")}`);
    }
    found[name] = OPTIONS[/** @type {keyof GenerationConfig} */ (name)][1](name, value);
  }
  return found;
}

/**
 * Raise `OptionError` for an option with an id outside the vocabulary.
 * @param {GenerationConfig} config
 * @param {number} vocabSize
 */
export function checkIds(config, vocabSize) {
  const named = {
    logit_bias: config.logit_bias.map(([id]) => id),
    bad_words_ids: config.bad_words_ids.flat(),
  };
  for (const [name, found] of Object.entries(named)) {
    const wrong = found.find((id) => id >= vocabSize);
    if (wrong !== undefined) {
      throw new OptionError(`${name} names id ${wrong}, which is outside the vocabulary; ids go from 0 to ${vocabSize - 1}`);
    }
  }
}

/** @param {string} name @param {unknown} value @param {number} low @param {number} [high] */
function wholeNumber(name, value, low, high = Infinity) {
  if (typeof value === "number" && Number.isSafeInteger(value) && low <= value && value <= high) return value;
  const limits = high === Infinity ? `of at least ${low}` : `from ${low} to ${high}`;
  throw new OptionError(`${name} should be a whole number ${limits}, found ${shown(value)}`);
}

/** @param {number} low @param {number} [high] @returns {Check} */
function whole(low, high) {
  return (name, value) => wholeNumber(name, value, low, high);
}

/** @param {string} limits the same in words @param {(value: number) => boolean} fits @returns {Check} */
function real(limits, fits) {
  return (name, value) => {
    if (typeof value === "number" && fits(value)) return value;
    throw new OptionError(`${name} should be a number ${limits}, found ${shown(value)}`);
  };
}

/** @param {...(string | number | boolean)} choices @returns {Check} */
function oneOf(...choices) {
  return (name, value) => {
    if (choices.some((choice) => choice === value)) return value;
    throw new OptionError(`${name} should be ${choices.map((each) => JSON.stringify(each)).join(" or ")}, found ${shown(value)}`);
  };
}

/** @param {number} most @param {number} longest @returns {Check} */
function strings(most, longest) {
  return (name, value) => {
    const texts = typeof value === "string" ? [value] : value;
    if (!Array.isArray(texts) || texts.length > most) {
      throw new OptionError(`${name} should be a list of up to ${most} strings, found ${shown(value)}`);
    }
    for (const text of texts) {
      if (typeof text !== "string" || !text || [...text].length > longest) {
        throw new OptionError(`each ${name} string should have 1 to ${longest} characters, found ${shown(text)}`);
      }
    }
    return [...texts];
  };
}

/** @type {Check} */
function ids(name, value) {
  if (!Array.isArray(value) || value.length > MAX_IDS) {
    throw new OptionError(`${name} should be a list of at most ${MAX_IDS} token ids, found ${shown(value)}`);
  }
  return value.map((id) => wholeNumber(`each id of ${name}`, id, 0));
}

/** @type {Check} */
function idLists(name, value) {
  if (!Array.isArray(value)) throw new OptionError(`${name} should be a list of lists of token ids, found ${shown(value)}`);
  return value.map((each) => {
    const found = /** @type {number[]} */ (ids(`each item of ${name}`, each));
    if (!found.length) throw new OptionError(`each item of ${name} should be a list of at least one token id, found an empty one`);
    return found;
  });
}

/** @type {Check} */
function biases(name, value) {
  const isList = Array.isArray(value) && value.every((each) => Array.isArray(each) && each.length === 2);
  if (typeof value !== "object" || value === null || (Array.isArray(value) && !isList)) {
    throw new OptionError(`${name} should be a mapping from token ids to numbers, found ${shown(value)}`);
  }
  const pairs = isList ? /** @type {[unknown, unknown][]} */ (value) : Object.entries(value);
  if (pairs.length > MAX_IDS) throw new OptionError(`${name} should have at most ${MAX_IDS} token ids, found ${pairs.length}`);
  const bias = real("from -100 to 100", (each) => -100 <= each && each <= 100);
  const read = new Map(
    pairs.map(([id, each]) => [
      wholeNumber(`each id of ${name}`, typeof id === "string" && /^\d{1,15}$/.test(id) ? Number(id) : id, 0),
      /** @type {number} */ (bias(`each bias of ${name}`, each)),
    ]),
  );
  return [...read].sort(([one], [other]) => one - other);
}

/** @type {Check} */
function seed(name, value) {
  if (typeof value === "bigint" && 0n <= value && value <= MAX_SEED) return value;
  if (typeof value === "number" && Number.isSafeInteger(value) && value >= 0) return value;
  throw new OptionError(
    `${name} should be a whole number from 0 to ${MAX_SEED} (a BigInt from ${Number.MAX_SAFE_INTEGER + 1}n), found ${shown(value)}`,
  );
}
