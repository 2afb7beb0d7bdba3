/**
 * Writes JSON as Python's `json.dumps(value, sort_keys=True, separators=(",", ":"))` does: the form of which a manifest has a
 * digest.
 *
 * `JSON.parse` would lose how a number was written (`1.0` and `1e-07` are `1` and `1e-7` in JavaScript), so the text is rewritten
 * token by token.
 */

import { PackageError } from "../errors.js";

const TOKEN = /\s*([{}[\]:,]|"(?:[^"\\]|\\.)*"|[^\s{}[\]:,"]+)/y;

/**
 * The canonical text of a JSON text, of an object without its key `without`.
 * @param {string} text valid JSON
 * @param {string} without
 */
export function canonicalJson(text, without) {
  const tokens = tokensOf(text);
  let place = 0;

  /** @param {string | null} leftOut @returns {string} */
  function value(leftOut) {
    const token = tokens[place++];
    if (token === "[") {
      const items = [];
      while (tokens[place] !== "]") {
        if (tokens[place] === ",") place++;
        items.push(value(null));
      }
      place++;
      return `[${items.join(",")}]`;
    }
    if (token !== "{") return token.startsWith('"') ? ascii(JSON.parse(token)) : token;
    /** @type {[string, string][]} */
    const members = [];
    while (tokens[place] !== "}") {
      if (tokens[place] === ",") place++;
      const key = JSON.parse(tokens[place]);
      place += 2; // the colon
      const member = value(null);
      if (key !== leftOut) members.push([key, member]);
    }
    place++;
    members.sort(([one], [other]) => compare(one, other));
    return `{${members.map(([key, member]) => `${ascii(key)}:${member}`).join(",")}}`;
  }

  return value(without);
}

/** @param {string} text */
function tokensOf(text) {
  const tokens = [];
  const end = text.trimEnd().length;
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < end) {
    const found = TOKEN.exec(text);
    if (found === null) throw new PackageError("manifest.json is not JSON; export or copy the model again");
    tokens.push(found[1]);
  }
  return tokens;
}

/** Order by code points, as Python does; JavaScript's own order is that of UTF-16. @param {string} one @param {string} other */
function compare(one, other) {
  const [first, second] = [[...one], [...other]];
  for (let place = 0; place < Math.min(first.length, second.length); place++) {
    const difference = /** @type {number} */ (first[place].codePointAt(0)) - /** @type {number} */ (second[place].codePointAt(0));
    if (difference) return difference;
  }
  return first.length - second.length;
}

/** A string in JSON, of ASCII characters only. @param {string} text */
function ascii(text) {
  return JSON.stringify(text).replace(/[\u007f-\uffff]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
}
