/**
 * Keeps what messages contain plain text: a control token that a message writes out gets no meaning, as in Python's
 * `chat.plain_content`.
 *
 * A private mark is written into each such text before the template is rendered; the text is divided there when it is encoded.
 */

import { TemplateError, firstLine } from "../errors.js";

/** @import { TextTokenizer } from "./tokenizer.js" */

/** Characters for private use, which no vocabulary has; one that is in no message is taken. */
const MARKS = Array.from({ length: 0x1900 }, (_, place) => String.fromCharCode(0xe000 + place));
const LOOKS_LIKE_CONTROL = /^[<[{|\uff5c].*[>\]}|\uff5c]$/su;

/** Finds and marks the control tokens in the messages of one tokenizer and chat template. */
export class PlainContent {
  /**
   * Control tokens are the special ones, and further ones that the template writes.
   * @param {TextTokenizer} tokenizer
   * @param {string} template
   * @param {readonly string[]} others texts that are none of these, and get no meaning either
   */
  constructor(tokenizer, template, others = []) {
    const added = tokenizer.addedTokens.filter(({ content }) => content.length > 1);
    const byTemplate = added.filter(({ content }) => template.includes(content) && LOOKS_LIKE_CONTROL.test(content));
    const special = [...added.filter((token) => token.special), ...others.map((content) => ({ content }))];
    this.special = anyOf(special);
    this.tokens = anyOf([...special, ...byTemplate]);
    this.beginnings = new Set();
    for (const { content } of [...special, ...byTemplate]) {
      for (let length = 1; length < content.length; length++) this.beginnings.add(content.slice(0, length));
    }
    this.longest = Math.max(0, ...[...this.beginnings].map((beginning) => beginning.length));
  }

  /**
   * What `render` returns for the messages and the inputs, in pieces that are encoded each by itself.
   *
   * In the model's own messages only special tokens are marked: a template may look for thinking and calls there.
   * @template {object} Inputs
   * @param {(messages: readonly object[], inputs: Inputs) => string} render
   * @param {readonly object[]} messages
   * @param {Inputs} inputs of which `tools` and `documents` are data, too
   * @returns {string[]}
   */
  rendered(render, messages, inputs) {
    const { tools = null, documents = null } = /** @type {{ tools?: unknown, documents?: unknown }} */ (inputs);
    const told = asJson([messages, tools, documents]);
    const used = new Set(told);
    const mark = MARKS.find((each) => !used.has(each) && !told.includes(escaped(each)));
    if (mark === undefined) {
      throw new TemplateError("the messages have all characters for private use (U+E000 to U+F8FF); leave one out");
    }
    const marked = messages.map((message) => {
      const pattern = "role" in message && message.role === "assistant" ? this.special : this.tokens;
      return this.marked(message, mark, pattern);
    });
    const others = { tools: this.marked(tools, mark, this.tokens), documents: this.marked(documents, mark, this.tokens) };
    if (asJson([marked, others.tools, others.documents]) === told) return [render(messages, inputs)];
    const text = render(/** @type {object[]} */ (marked), { ...inputs, ...others });
    return text.replaceAll(escaped(mark), mark).split(mark);
  }

  /**
   * A JSON value whose texts have a mark within each control token, and one after the beginning of a token at their end.
   * @param {unknown} value
   * @param {string} mark
   * @param {RegExp} tokens
   * @returns {unknown}
   */
  marked(value, mark, tokens) {
    if (typeof value === "string") {
      const end = value.trimEnd().length;
      const closed = this.endsOpen(value.slice(0, end)) ? value.slice(0, end) + mark + value.slice(end) : value;
      return closed.replace(tokens, (token) => token.slice(0, 1) + mark + token.slice(1));
    }
    if (Array.isArray(value)) return value.map((item) => this.marked(item, mark, tokens));
    if (typeof value !== "object" || value === null) return value;
    const changed = Object.entries(value).map(([key, item]) => [this.marked(key, mark, tokens), this.marked(item, mark, tokens)]);
    return Object.fromEntries(changed);
  }

  /** Whether a text ends with the beginning of a control token, which the next text may complete. @param {string} text */
  endsOpen(text) {
    for (let length = 1; length <= Math.min(this.longest, text.length); length++) {
      if (this.beginnings.has(text.slice(-length))) return true;
    }
    return false;
  }
}

/** JSON of the messages; raises `TemplateError` for what is none. @param {unknown} data */
function asJson(data) {
  try {
    return JSON.stringify(data);
  } catch (error) {
    throw new TemplateError(`messages should be plain JSON: ${firstLine(error)}`, { cause: error });
  }
}

/** Matches each of these tokens, the longest that fits. @param {{ content: string }[]} tokens */
function anyOf(tokens) {
  const texts = [...new Set(tokens.map(({ content }) => content))].sort((one, other) => other.length - one.length);
  return new RegExp(texts.map((text) => text.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&")).join("|") || "(?!)", "g");
}

/** A mark as a template writes it that turns a text to JSON in ASCII. @param {string} mark */
const escaped = (mark) => `\\u${mark.charCodeAt(0).toString(16)}`;
