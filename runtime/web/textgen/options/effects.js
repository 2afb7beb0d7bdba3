/**
 * Refuses options that cannot take effect together with the others, instead of ignoring them, as Python's `options.resolve`.
 *
 * This holds for the options of the caller. A package's defaults that cannot take effect are ignored.
 */

import { OptionError } from "../errors.js";

/** @import { GenerationConfig } from "./generation_config.js" */

const TRUNCATION = ["top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc_probability", "mirostat"];

/**
 * Options that need another one: when that is on, and how a message says it.
 * @type {[string[], (config: GenerationConfig) => boolean, string][]}
 */
const NEEDS = [
  [["xtc_threshold"], (config) => config.xtc_probability > 0, "xtc_probability above 0"],
  [["mirostat_tau", "mirostat_eta"], (config) => config.mirostat > 0, "mirostat 2"],
  [
    ["dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"],
    (config) => config.dry_multiplier > 0,
    "dry_multiplier above 0",
  ],
];

/** The values that switch an option off, so that it is no error where it cannot take effect. @type {Record<string, unknown>} */
const OFF = { top_k: 0, top_p: 1, min_p: 0, typical_p: 1, top_n_sigma: 0, xtc_probability: 0, mirostat: 0, min_new_tokens: 0 };

/**
 * Raise `OptionError` if an option that the caller `asked` for, by name, cannot take effect in `config`.
 * @param {GenerationConfig} config
 * @param {readonly string[]} asked
 */
export function checkEffect(config, asked) {
  const values = /** @type {Record<string, unknown>} */ (/** @type {unknown} */ (config));
  const names = asked.filter((name) => !(name in OFF) || values[name] !== OFF[name]);
  for (const [needing, isOn, what] of NEEDS) {
    const name = needing.find((each) => names.includes(each));
    if (name !== undefined && !isOn(config)) {
      throw new OptionError(`${name} cannot take effect without ${what}; give that too, or leave ${name} out`);
    }
  }
  const truncation = names.filter((name) => TRUNCATION.includes(name));
  if (config.temperature !== 0 && config.mirostat) {
    refuse(
      truncation.filter((name) => name !== "mirostat"),
      "with mirostat, which replaces other truncations",
    );
  }
  if (config.ignore_eos && names.includes("min_new_tokens")) refuse(["min_new_tokens"], "with ignore_eos");
  if (config.min_new_tokens > config.max_new_tokens) {
    throw new OptionError(`min_new_tokens ${config.min_new_tokens} is more than max_new_tokens ${config.max_new_tokens}; lower it`);
  }
}

/** Raise `OptionError` about some options, if there are any. @param {readonly string[]} names @param {string} why */
function refuse(names, why) {
  if (names.length) {
    const listed = [...names].sort().join(" and ");
    throw new OptionError(`${listed} cannot take effect ${why}; leave ${names.length > 1 ? "them" : "it"} out`);
  }
}
