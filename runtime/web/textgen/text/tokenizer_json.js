/**
 * Finds out from `tokenizer.json` how its tokens become text.
 */

/** @typedef {{ type: string, [key: string]: any }} Component */

export const BYTE_TOKEN = /^<0x[0-9A-Fa-f]{2}>$/;

/**
 * What must be known before a token's text is certain: its bytes; the tokens before it; the next token, which a
 * space precedes; for a byte token, the rest of its character; all tokens.
 * @typedef {"bytes" | "tokens" | "next" | "runs" | "whole"} Streaming
 */

const KNOWN = ["Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "WordPiece"];

/** Decide how tokens must be decoded. @param {readonly Component[]} decoders @returns {Streaming} */
export function streamingOf(decoders) {
  const kinds = decoders.map((each) => each.type);
  if (kinds.length === 1 && kinds[0] === "ByteLevel") return "bytes";
  if (kinds.length === 1 && kinds[0] === "BPEDecoder") return "next"; // which makes a space of the end of each word but the last
  if (!kinds.every((kind) => KNOWN.includes(kind))) return "whole";
  // After Fuse, a component gets the whole text as one token: only a change at its beginning can be known early.
  const afterFuse = kinds.includes("Fuse") ? decoders.slice(kinds.indexOf("Fuse") + 1) : [];
  if (afterFuse.some((each) => each.type !== "Strip" || each["stop"])) return "whole";
  return kinds.includes("ByteFallback") ? "runs" : "tokens";
}

/**
 * The character that the decoder turns into a space, usually U+2581; "" if there is none.
 * @param {readonly Component[]} decoders
 */
export function visibleSpace(decoders) {
  for (const each of decoders) {
    if (each.type === "Metaspace") return String(each["replacement"]);
    if (each.type === "Replace" && each["content"] === " ") return String(each["pattern"]["String"] ?? "");
  }
  return "";
}

/** The decoder as a flat list. @param {Component | null | undefined} component @returns {Component[]} */
export function flatDecoders(component) {
  if (!component) return [];
  if (component.type !== "Sequence") return [component];
  return component["decoders"].flatMap((/** @type {Component} */ each) => flatDecoders(each));
}

/**
 * Each character of a byte-level token with its byte (GPT-2's table): printable characters are their own bytes.
 * @returns {Map<string, number>}
 */
export function byteOfCharacter() {
  const isPrintable = (/** @type {number} */ byte) => (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
  const table = new Map();
  let others = 0;
  for (let byte = 0; byte < 256; byte++) {
    table.set(String.fromCharCode(isPrintable(byte) ? byte : 0x100 + others), byte);
    if (!isPrintable(byte)) others++;
  }
  return table;
}
