/**
 * Text to token ids and back, by `@huggingface/tokenizers`, with the rules of Python's `text.tokenizer`.
 */

import { correctByteFallback, textOf } from "./byte_fallback.js";
import { PromptError, TokenizerError, firstLine } from "../errors.js";
import { BYTE_TOKEN, byteOfCharacter, flatDecoders, streamingOf, visibleSpace } from "./tokenizer_json.js";

/** @import { Libraries } from "../libraries.js" */

/** The tokenizer of a package. */
export class TextTokenizer {
  /**
   * @param {Libraries["tokenizers"]} library
   * @param {string} text the content of `tokenizer.json`
   * @param {{ eosIds?: readonly number[], bosId?: number | null }} ids left out of decoded text, whatever the file says about them
   */
  constructor(library, text, { eosIds = [], bosId = null } = {}) {
    this.tokenizer = guarded("its file", () => {
      const spec = JSON.parse(text);
      const decoders = flatDecoders(spec.decoder);
      this.streaming = streamingOf(decoders);
      this.space = visibleSpace(decoders);
      const tokenizer = new library.Tokenizer(spec, {});
      correctByteFallback(library, tokenizer.decoder);
      return tokenizer;
    });
    this.bosId = bosId;
    this.eosIds = eosIds;
    this.addedTokens = [...this.tokenizer.get_added_tokens_decoder().values()];
    this.added = new Set(this.addedTokens.map((token) => token.content));
    this.addedIds = new Set(this.addedTokens.map((token) => token.id));
    const control = this.addedTokens.filter((token) => token.special).map((token) => token.id);
    this.hidden = new Set([...control, ...eosIds, ...(bosId === null ? [] : [bosId])]);
    this.byteOf = this.streaming === "bytes" ? byteOfCharacter() : null;
  }

  /**
   * Split a text into ids; with `addSpecialTokens` also those that the tokenizer adds around a text, such as `<s>`.
   *
   * Special tokens that are written out in the text become their ids. Raises `PromptError` if `text` is not valid text.
   * @param {string} text
   * @param {{ addSpecialTokens?: boolean }} options
   * @returns {number[]}
   */
  encode(text, { addSpecialTokens = true } = {}) {
    if (typeof text !== "string") throw new PromptError(`a prompt should be text, found a ${typeof text}; give a string`);
    const surrogate = text.search(/[\ud800-\udfff]/u);
    if (surrogate >= 0) throw new PromptError(`the prompt has a lone surrogate at character ${surrogate}; give valid Unicode text`);
    return guarded("this text", () => this.tokenizer.encode(text, { add_special_tokens: addSpecialTokens }).ids);
  }

  /** Decode ids to text without special tokens; unknown ids are left out. @param {readonly number[]} ids */
  decode(ids) {
    const visible = ids.filter((id) => this.visibleToken(id) !== null);
    if (!visible.length) return "";
    if (this.byteOf && visible.some((id) => this.addedIds.has(id))) {  // whose text the library takes for bytes
      const tokens = visible.map((id) => this.tokenBytes(/** @type {string} */ (this.tokenizer.id_to_token(id))));
      return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(tokens.flatMap((bytes) => [...bytes])));
    }
    return guarded("these ids", () => this.tokenizer.decode(visible, { clean_up_tokenization_spaces: false }));
  }

  /** The text of one id for a person to read; a byte that is no character by itself is shown as `<0xE2>`. @param {number} id */
  piece(id) {
    const token = this.tokenizer.id_to_token(id);
    if (token === undefined) return `<${id}>`;
    if (this.byteOf) {
      return textOf(this.tokenBytes(token), (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`);
    }
    return this.space ? token.replaceAll(this.space, " ") : token;
  }

  /** The token as the vocabulary has it; null if `decode` leaves it out. @param {number} id @returns {string | null} */
  visibleToken(id) {
    return this.hidden.has(id) ? null : (this.tokenizer.id_to_token(id) ?? null);
  }

  /** Whether a token is one byte. @param {string} token */
  isByteToken(token) {
    return BYTE_TOKEN.test(token);
  }

  /**
   * The bytes of a byte-level token, one per character; one with other characters, and an added one, is encoded as UTF-8.
   * @param {string} token
   */
  tokenBytes(token) {
    const bytes = [...token].map((character) => this.byteOf?.get(character));
    return this.added.has(token) || bytes.some((byte) => byte === undefined)
      ? new TextEncoder().encode(token)
      : Uint8Array.from(/** @type {number[]} */ (bytes));
  }
}

/**
 * Turn any error of the library into `TokenizerError`.
 * @template T
 * @param {string} doing
 * @param {() => T} work
 * @returns {T}
 */
function guarded(doing, work) {
  try {
    return work();
  } catch (error) {
    throw new TokenizerError(`the tokenizer failed on ${doing} (${firstLine(error)}); export the model again`, { cause: error });
  }
}
