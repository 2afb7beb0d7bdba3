/**
 * Decodes ids to text during generation, and returns only text that no later id can change.
 */

import { byteOf, unfinished } from "./byte_fallback.js";

/** @import { TextTokenizer } from "./tokenizer.js" */

/** The most ids before the text that are used. */
const CONTEXT_TOKENS = 16;

/**
 * Decodes ids one by one: the results of all pushes and the flush, joined, are exactly `decode` of all ids; never part of a
 * character.
 *
 * A token's text can depend on the beginning of the text (a leading space is removed) and, for byte tokens, on the rest of their
 * character, but on nothing else. So new ids are decoded together with the first ids of the text only.
 */
export class StreamDecoder {
  /**
   * @param {TextTokenizer} tokenizer
   * @param {readonly number[]} after the ids before the text, such as the prompt's; without them a leading space is lost
   */
  constructor(tokenizer, after = []) {
    this.tokenizer = tokenizer;
    this.utf8 = new TextDecoder("utf-8", { ignoreBOM: true });
    /** The first ids of the text, up to a character that no byte token after it can change. @type {number[]} */
    this.start = [];
    /** Length of their text. */
    this.shown = 0;
    this.isSettled = false;
    /** @type {number[]} */
    this.held = [];
    /** The bytes of those that begin a character. @type {number[]} */
    this.bytes = [];
    for (const id of after.slice(-CONTEXT_TOKENS)) this.push(id);
    if (tokenizer.streaming === "whole") this.release();
  }

  /** Append an id; returns the text that it makes certain: often that of the id itself, sometimes none. @param {number} id */
  push(id) {
    const { tokenizer } = this;
    const token = tokenizer.visibleToken(id);
    if (token === null) return "";
    if (tokenizer.streaming === "bytes") return this.utf8.decode(tokenizer.tokenBytes(token), { stream: true });
    if (tokenizer.streaming === "next") {
      const before = this.start;
      this.start = [id];
      return tokenizer.decode([...before, id]).slice(tokenizer.decode(before).length);
    }
    this.held.push(id);
    if (tokenizer.streaming === "whole") return "";
    const isByte = tokenizer.streaming === "runs" && tokenizer.isByteToken(token);
    this.bytes = isByte ? [...this.bytes, byteOf(token)] : [];
    return this.release(unfinished(this.bytes));
  }

  /** Return the rest of the text after the last id; an unfinished character becomes U+FFFD. */
  flush() {
    return this.release() + this.utf8.decode();
  }

  /** The text of what is held, without the last ids, which begin a character. */
  release(unfinished = 0) {
    const released = this.held.splice(0, this.held.length - unfinished);
    this.bytes = unfinished ? this.bytes.slice(-unfinished) : [];
    if (!released.length) return "";
    const ids = [...this.start, ...released];
    const text = this.tokenizer.decode(ids);
    const added = text.slice(this.shown);
    if (!this.isSettled) [this.start, this.shown, this.isSettled] = [ids, text.length, text !== "" && !text.endsWith("\ufffd")];
    return added;
  }
}
