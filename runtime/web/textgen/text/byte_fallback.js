/**
 * Corrects how `@huggingface/tokenizers` 0.2 decodes runs of byte tokens (`<0xE2><0x82>...`).
 *
 * As in the Rust library, a run is text if all of it is UTF-8, else each of its bytes is U+FFFD. The JavaScript library keeps
 * what is valid of a run, and drops a U+FEFF at its beginning.
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

/**
 * Tokens with each run of byte tokens as one.
 * @param {string[]} tokens
 */
function decodeRuns(tokens) {
  const decoded = [];
  for (let place = 0; place < tokens.length;) {
    const bytes = [];
    while (place < tokens.length && BYTE_TOKEN.test(tokens[place])) bytes.push(parseInt(tokens[place++].slice(3, 5), 16));
    decoded.push(bytes.length ? textOf(bytes) : tokens[place++]);
  }
  return decoded;
}

/** @param {number[]} bytes */
function textOf(bytes) {
  try {
    return UTF8.decode(Uint8Array.from(bytes));
  } catch {
    return "\ufffd".repeat(bytes.length);
  }
}
