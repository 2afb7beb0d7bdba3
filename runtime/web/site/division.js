/**
 * Divides what a model writes into its thinking, its calls of functions and its text, by the marks that `site.json` lists for the model.
 *
 * @typedef {"text" | "thinking" | "call"} Kind
 * @typedef {{ kind: Kind, text: string, isOver: boolean }} Part
 */

/** @import { Marks } from "./site_file.js" */

/**
 * The parts of an answer.
 * @param {string} text
 * @param {Marks} marks
 * @param {{ isThinking?: boolean, isGrowing?: boolean }} state `isThinking`: the answer begins within its thinking; `isGrowing`: a mark
 *   may be cut off at its end, which is then left out
 * @returns {Part[]}
 */
export function divide(text, marks, { isThinking = false, isGrowing = false } = {}) {
  /** @type {Part[]} */
  const parts = [];
  const openings = Object.entries(marks).flatMap(([kind, { open }]) => open.map((mark) => ({ mark, kind: /** @type {Kind} */ (kind) })));
  const add = (/** @type {Kind} */ kind, /** @type {string} */ part, isOver = true) => {
    if (part.trim() || !isOver) parts.push({ kind, text: part.trim(), isOver });
  };
  let rest = text;
  /** @type {Kind} */
  let kind = isThinking ? "thinking" : "text";
  for (;;) {
    const ends = kind === "text" ? openings : (marks[kind]?.close ?? []).map((mark) => ({ mark, kind: /** @type {Kind} */ ("text") }));
    const found = first(rest, ends);
    if (!found) break;
    add(kind, rest.slice(0, found.place));
    rest = rest.slice(found.place + found.mark.length);
    kind = found.kind;
  }
  const left = isGrowing ? withoutCutMark(rest, [...openings.map(({ mark }) => mark), ...(kind === "text" ? [] : (marks[kind]?.close ?? []))]) : rest;
  add(kind, left, kind === "text");
  return parts;
}

/**
 * The mark that comes first in a text; of those at one place, the longest.
 * @param {string} text
 * @param {{ mark: string, kind: Kind }[]} marks
 */
function first(text, marks) {
  const found = marks.map((each) => ({ ...each, place: text.indexOf(each.mark) })).filter(({ place }) => place >= 0);
  return found.sort((one, other) => one.place - other.place || other.mark.length - one.mark.length)[0];
}

/** @param {string} text @param {string[]} marks */
function withoutCutMark(text, marks) {
  const lengths = marks.flatMap((mark) => Array.from({ length: mark.length - 1 }, (_, place) => mark.slice(0, place + 1)));
  const cut = lengths.filter((beginning) => text.endsWith(beginning)).sort((one, other) => other.length - one.length)[0];
  return cut ? text.slice(0, -cut.length) : text;
}
