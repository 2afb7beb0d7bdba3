/**
 * Corrects how `@huggingface/tokenizers` 0.2 decodes runs of byte tokens (`<0x0A><0xE2>...`), to what Python's `TextTokenizer` does.
 *
 * Each byte that belongs to no character is one U+FFFD. The library makes one of several, and drops a U+FEFF at the beginning.
 */

import { BYTE_TOKEN } from "./tokenizer_json.js";

/** @import { Libraries } from "../libraries.js" */

const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/**
 * Replace the method of a tokenizer's decoder that decodes runs.
 * @param {Libraries["tokenizers"]} library
 * @param {unknown} decoder of a `Tokenizer`
 */
export function correctByteFallback(library, decoder) {
  if (decoder instanceof library.SequenceDecoder) decoder.decoders.forEach((each) => correctByteFallback(library, each));
  if (decoder instanceof library.ByteFallbackDecoder) decoder.decode_chain = decodeRuns;
}

/** The byte of a byte token. @param {string} token */
export const byteOf = (token) => parseInt(token.slice(3, 5), 16);

/**
 * Tokens with each run of byte tokens as one.
 * @param {string[]} tokens
 */
function decodeRuns(tokens) {
  const decoded = [];
  for (let place = 0; place < tokens.length;) {
    const bytes = [];
    while (place < tokens.length && BYTE_TOKEN.test(tokens[place])) bytes.push(byteOf(tokens[place++]));
    decoded.push(bytes.length ? textOf(Uint8Array.from(bytes), () => "\ufffd") : tokens[place++]);
  }
  return decoded;
}

/**
 * Bytes as text.
 * @param {Uint8Array} bytes
 * @param {(byte: number) => string} odd what is written for a byte that belongs to no character
 */
export function textOf(bytes, odd) {
  let text = "";
  for (let start = 0; start < bytes.length;) {
    const length = lengthOf(bytes[start]);
    try {
      text += UTF8.decode(bytes.subarray(start, start + length));
      start += length;
    } catch {
      text += odd(bytes[start++]);
    }
  }
  return text;
}

/**
 * How many bytes at the end begin a character that more bytes may finish.
 * @param {readonly number[]} bytes
 */
export function unfinished(bytes) {
  for (let count = Math.min(3, bytes.length); count > 0; count--) {
    const end = bytes.slice(-count);
    const missing = lengthOf(end[0]) - count;
    if (missing > 0 && [0x80, 0x90, 0xa0, 0xbf].some((byte) => isText([...end, ...Array(missing).fill(byte)]))) return count;
  }
  return 0;
}

/** Bytes of the character that a byte begins. @param {number} lead */
const lengthOf = (lead) => (lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4);

/** @param {readonly number[]} bytes */
function isText(bytes) {
  try {
    UTF8.decode(Uint8Array.from(bytes));
    return true;
  } catch {
    return false;
  }
}
