/** The options of one call, with the names, limits and defaults of Python's `GenerationConfig`; its others are refused by name. */

import { OptionError, PackageError, shown } from "../errors.js";

/**
 * @typedef {object} GenerationConfig
 * @property {number} max_new_tokens
 * @property {number} temperature
 * @property {number} top_k
 * @property {number} top_p
 * @property {number} min_p
 * @property {number} repetition_penalty
 * @property {number | bigint} seed drawn if the caller gives none
 * @property {readonly string[]} stop
 * @property {number | null} logprobs
 */

/** @typedef {Partial<Omit<GenerationConfig, "stop"> & { stop: string | readonly string[] }>} Options */

/** @typedef {(name: string, value: unknown) => unknown} Check */

const MAX_SEED = 2n ** 63n - 1n;

/** Each option's default and check. @type {Record<keyof GenerationConfig, [unknown, Check]>} */
const OPTIONS = {
  max_new_tokens: [256, whole(1)],
  temperature: [0.8, real("from 0 (always the most likely) to 100", (each) => 0 <= each && each <= 100)],
  top_k: [0, whole(0)],
  top_p: [1, real("above 0, up to 1", (each) => 0 < each && each <= 1)],
  min_p: [0, real("from 0 to 1", (each) => 0 <= each && each <= 1)],
  repetition_penalty: [1, real("above 0, up to 100", (each) => 0 < each && each <= 100)],
  seed: [null, seed],
  stop: [[], strings(16, 256)],
  logprobs: [null, whole(0, 64)],
};

/** Options that only Python has. */
const PYTHON_ONLY = new Set(
  `min_new_tokens presence_penalty frequency_penalty no_repeat_ngram_size dry_multiplier dry_base dry_allowed_length
  dry_penalty_last_n dry_sequence_breakers logit_bias bad_words_ids num_return_sequences best_of num_beams length_penalty
  early_stopping ignore_eos max_time context_limit prompt_lookup_num_tokens max_matching_ngram_size num_assistant_tokens
  assistant_confidence_threshold draft_verification loop_guard json_schema strict_schema regex grammar adapter src_lang tgt_lang
  logits_processor stopping_criterion`.split(/\s+/),
);

/**
 * Merge options: the caller's first, then the package's defaults (`manifest.generation`), then those above; draws a seed if none is
 * given. An option that is null or undefined counts as not given; a default that only Python has is left out.
 *
 * Raises `OptionError` for an option that is unknown or unusable, and `PackageError` for an unusable default.
 * @param {Record<string, unknown>} defaults
 * @param {Options} options
 * @returns {GenerationConfig}
 */
export function makeConfig(defaults, options) {
  const config = /** @type {Record<string, unknown>} */ ({});
  for (const [name, [value]] of Object.entries(OPTIONS)) config[name] = value;
  try {
    Object.assign(config, checked(Object.fromEntries(Object.entries(defaults).filter(([name]) => !PYTHON_ONLY.has(name)))));
  } catch (error) {
    if (!(error instanceof OptionError)) throw error;
    throw new PackageError(`the package has an unusable generation default: ${error.message}; export the model again`);
  }
  Object.assign(config, checked(options));
  const made = /** @type {GenerationConfig} */ (/** @type {unknown} */ (config));
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
function seed(name, value) {
  if (typeof value === "bigint" && 0n <= value && value <= MAX_SEED) return value;
  if (typeof value === "number" && Number.isSafeInteger(value) && value >= 0) return value;
  throw new OptionError(
    `${name} should be a whole number from 0 to ${MAX_SEED} (a BigInt from ${Number.MAX_SAFE_INTEGER + 1}n), found ${shown(value)}`,
  );
}
