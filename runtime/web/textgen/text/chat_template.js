/**
 * Renders chat messages to one prompt with the model's chat template, by `@huggingface/jinja`, as Python's `render_chat` does.
 *
 * Messages have texts: `{ role: "user", content: "Hello" }`; `chat` makes them of others. Tool calls are written as the template
 * expects them; answers are not divided into text, thinking and calls here. A template is a program without limits of time: take packages from people you trust.
 * The library writes a boolean that a template prints as `true`, Python as `True`; what it does not know it refuses.
 */

import { RefusedError, TemplateError, firstLine } from "../errors.js";
import { strftime } from "./strftime.js";

/** @import { Libraries } from "../libraries.js" */

/** What every template may use besides its inputs; the library's own environment has a `strftime_now` that cannot be replaced. */
const GLOBALS = {
  ...{ true: true, True: true, false: false, False: false, none: null, None: null },
  range,
  raise_exception: (/** @type {string} */ message) => {
    throw new Error(message);
  },
};

/**
 * @typedef {object} ChatInputs
 * @property {string} [bosToken]
 * @property {string} [eosToken]
 * @property {boolean} [addGenerationPrompt] whether the text ends where the assistant's answer begins
 * @property {readonly object[] | null} [tools] JSON schemas
 * @property {readonly object[] | null} [documents] what an answer may cite
 * @property {Record<string, unknown>} [variables] further variables of this template, such as `{ enable_thinking: false }`
 * @property {Date} [now] the time for templates that write the date
 */

/**
 * Render a conversation in the format that the model was trained on, special tokens included; encode it without adding others.
 *
 * Raises `TemplateError` if the template refuses the messages or is not valid.
 * @param {Libraries["jinja"]} library
 * @param {string} template
 * @param {readonly object[]} messages
 * @param {ChatInputs} inputs
 * @returns {string}
 */
export function renderChat(library, template, messages, inputs = {}) {
  const {
    bosToken,
    eosToken,
    addGenerationPrompt = true,
    tools = null,
    documents = null,
    variables = {},
    now = new Date(),
  } = inputs;
  checkMessages(messages);
  let parsed;
  try {
    parsed = new library.Template(template);
  } catch (error) {
    throw new TemplateError(`the chat template is not valid: ${firstLine(error)}`, { cause: error });
  }
  try {
    const environment = new library.Environment();
    const everything = {
      ...GLOBALS,
      ...variables,
      ...(bosToken === undefined ? {} : { bos_token: bosToken }),
      ...(eosToken === undefined ? {} : { eos_token: eosToken }),
      messages,
      tools,
      documents,
      add_generation_prompt: addGenerationPrompt,
      strftime_now: (/** @type {string} */ format) => strftime(format, now),
    };
    for (const [name, value] of Object.entries(everything)) environment.set(name, value);
    return String(new library.Interpreter(environment).run(parsed.parsed).value);
  } catch (error) {
    throw new RefusedError(`the chat template refused the messages: ${firstLine(error)}; change them as it asks`, {
      cause: error,
    });
  }
}

/** Raise `TemplateError` unless these are objects. @param {readonly unknown[]} messages */
export function checkMessages(messages) {
  messages.forEach((message, place) => {
    if (typeof message !== "object" || message === null || Array.isArray(message)) {
      throw new TemplateError(
        `message ${place} is no object; give each message as one such as {"role": "user", "content": "Hello"}`,
      );
    }
  });
}

/**
 * Python's `range`.
 * @param {number} start
 * @param {number} [stop]
 */
function range(start, stop, step = 1) {
  const [from, to] = stop === undefined ? [0, start] : [start, stop];
  if (!step) throw new Error("range() needs a step other than 0");
  return Array.from({ length: Math.max(0, Math.ceil((to - from) / step)) }, (_, index) => from + index * step);
}
