/**
 * The errors that this library raises, named as in Python: each message is one line that says what is wrong, why, and what to do.
 */

/** Base class of the errors that a caller can fix. */
export class TextgenError extends Error {
  /** @param {string} message @param {ErrorOptions} [options] */
  constructor(message, options) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** A package that is missing, damaged, unknown or newer than this version. */
export class PackageError extends TextgenError {}

/** An option that does not exist, is out of range or cannot take effect. */
export class OptionError extends TextgenError {}

/** A prompt that is empty, too long, not valid text, or has ids outside the vocabulary. */
export class PromptError extends TextgenError {}

/** A tokenizer file that cannot be used, or that failed on a text. */
export class TokenizerError extends TextgenError {}

/** A chat template that is missing or refused the messages. */
export class TemplateError extends TextgenError {}

/** A chat template refused these messages, or failed on them; it may take them in another order. */
export class RefusedError extends TemplateError {}

/** The model failed while it ran, or its logits are not numbers. */
export class ModelError extends TextgenError {}

/**
 * The first line of an error's message, at most 300 characters.
 * @param {unknown} error
 */
export function firstLine(error) {
  const text = error instanceof Error ? error.message || error.name : String(error);
  return (text.trim().split("\n")[0] ?? "").slice(0, 300);
}

/**
 * A value for a one-line message, always short.
 * @param {unknown} value
 */
export function shown(value) {
  if (typeof value === "string") return JSON.stringify(value.length <= 40 ? value : `${value.slice(0, 37)}...`);
  if (Array.isArray(value)) return `a list of ${value.length}`;
  if (value === null || ["number", "bigint", "boolean", "undefined"].includes(typeof value)) return String(value).slice(0, 60);
  return `a value of type ${typeof value}`;
}
