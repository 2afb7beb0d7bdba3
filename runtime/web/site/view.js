/**
 * Probabilities and token texts as the page shows them: the same bands, signs and words as the page of `onnx-textgen demo`.
 */

/** Bands of probability, from likely to surprising: the name in the legend, and the lowest probability. */
export const BANDS = /** @type {const} */ ([
  ["80 % or more", 0.8],
  ["40 to 80 %", 0.4],
  ["10 to 40 %", 0.1],
  ["2 to 10 %", 0.02],
  ["below 2 %", 0],
]);

/** @type {Record<string, string>} */
const ENDINGS = {
  eos: "the model ended its text",
  length: "reached max new tokens",
  stop: "met a stop string",
  context: "the context is full",
  cancelled: "stopped by you",
};

/** @type {Record<string, string>} */
const SIGNS = { " ": "␣", "\n": "⏎", "\t": "⇥" };

const UNPRINTABLE = /[\p{C}\p{Z}]/u;

/**
 * The number of a probability's band, 0 to 4.
 * @param {number} probability
 */
export const bandOf = (probability) => BANDS.findIndex(([, lowest]) => probability >= lowest);

/**
 * A probability as text: `85.1 %`, `0.31 %`, `< 0.01 %`.
 * @param {number} probability
 */
export function percent(probability) {
  if (probability < 0.0001) return "< 0.01 %";
  return `${(100 * probability).toFixed(probability >= 0.01 ? 1 : 2)} %`;
}

/**
 * A piece with visible signs for spaces and line ends, and with codes for unprintable characters: `␣cat`, `end.⏎`.
 * @param {string} piece
 */
export function visible(piece) {
  const byte = /^<0x([0-7][0-9A-F])>$/.exec(piece);
  const text = byte ? String.fromCharCode(parseInt(/** @type {string} */ (byte[1]), 16)) : piece;
  return [...text].map((each) => SIGNS[each] ?? (UNPRINTABLE.test(each) ? codeOf(each) : each)).join("") || "(empty)";
}

/** @param {string} character */
function codeOf(character) {
  const code = /** @type {number} */ (character.codePointAt(0)).toString(16);
  return code.length <= 2 ? `\\x${code.padStart(2, "0")}` : `\\u{${code}}`;
}

/**
 * How a text ended, with an explanation.
 * @param {string} reason
 */
export const finished = (reason) => (reason in ENDINGS ? `finished: ${reason} (${ENDINGS[reason]})` : `finished: ${reason}`);

/**
 * A number of bytes: `10.2 MB`.
 * @param {number} bytes
 */
export function size(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  if (bytes < 1e6) return `${(bytes / 1e3).toFixed(1)} kB`;
  return bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(1)} GB`;
}

/**
 * A whole number with commas between thousands.
 * @param {number} number
 */
export const count = (number) => number.toLocaleString("en");

/**
 * Make an element. Texts are always set as text, because they may come from a model or a package.
 * @template {keyof HTMLElementTagNameMap} Name
 * @param {Name} name
 * @param {Record<string, string | number | boolean>} [attributes] true sets an empty attribute, false none
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[Name]}
 */
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== false) element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children);
  return element;
}

/**
 * The element of the page with this id.
 * @template {HTMLElement} Kind
 * @param {string} id
 * @param {new () => Kind} kind
 * @returns {Kind}
 */
export function get(id, kind) {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`the page has no ${id}`);
  return found;
}

/**
 * Names with their values, for a status line.
 * @param {[name: string, value: string][]} facts
 */
export const factSpans = (facts) => facts.map(([name, value]) => make("span", {}, `${name} `, make("b", {}, value)));
