/** Pictures in the messages of a chat, as Python's `images.in_messages`: the chat template writes their places. */

import { TemplateError } from "../errors.js";
import { Picture } from "./pictures.js";

/** @import { ImageRecord } from "./pictures.js" */

/** A mark around the number of a picture, in the text for a template that writes no parts; no text has it. */
const MARK = "\uf8ff9f2c1e7a\uf8ff";
const MARKED = new RegExp(`${MARK}(\\d+)${MARK}`, "g");

/** Whether a part of a content is a picture that was read. @param {any} part @returns {part is { image: Picture }} */
export const isPicture = (part) => part?.type === "image" && part.image instanceof Picture;

/** Whether a part is the place of a picture. @param {any} part */
export const isPlace = (part) => part?.type === "image" && Number.isInteger(part.place);

/**
 * Messages with a place for each picture, and the pictures in their order.
 * @param {readonly any[]} messages
 * @returns {{ places: any[], pictures: Picture[] }}
 */
export function withoutPictures(messages) {
  /** @type {Picture[]} */
  const pictures = [];
  const places = messages.map((message) => {
    if (!Array.isArray(message.content)) return message;
    const content = message.content.map((/** @type {any} */ part) => (isPicture(part) ? { type: "image", place: pictures.push(part.image) - 1 } : part));
    return { ...message, content };
  });
  return { places, pictures };
}

/** The numbers of the pictures that have a place in messages, in their order. @param {readonly any[]} messages @returns {number[]} */
export function placesIn(messages) {
  return messages.flatMap(({ content }) => (Array.isArray(content) ? content.filter(isPlace).map(({ place }) => place) : []));
}

/** Messages with a mark in the text for each place, for a template that writes no parts. @param {readonly any[]} messages */
export function asText(messages) {
  return messages.map((message) => {
    if (!Array.isArray(message.content)) return message;
    const texts = message.content.map((/** @type {any} */ part) => (isPlace(part) ? `${MARK}${part.place}${MARK}\n` : part.text));
    return { ...message, content: texts.join("") };
  });
}

/**
 * Pieces of a text with the placeholder in the place of each mark, and the numbers in these.
 * @param {readonly string[]} pieces
 * @param {string} placeholder
 */
export function unmarked(pieces, placeholder) {
  const numbers = pieces.flatMap((text) => [...text.matchAll(MARKED)].map(([, number]) => Number(number)));
  return { pieces: pieces.map((text) => text.replace(MARKED, () => placeholder)), numbers };
}

/** How often pieces of a text have the placeholder. @param {readonly string[]} pieces @param {string} placeholder */
export const countIn = (pieces, placeholder) => pieces.reduce((sum, text) => sum + text.split(placeholder).length - 1, 0);

/**
 * Ids in which the tokens of pictures are the ids of their rows; raises `TemplateError` if their number is another.
 * @param {number[]} ids
 * @param {Picture[]} pictures
 * @param {ImageRecord} record
 */
export function placed(ids, pictures, record) {
  const rows = pictures.flatMap((picture) => picture.ids);
  if (ids.filter((id) => id === record.token_id).length !== rows.length) {
    throw new TemplateError("the text itself has the token that stands for a row of a picture; take it out");
  }
  let next = 0;
  return ids.map((id) => (id === record.token_id ? /** @type {number} */ (rows[next++]) : id));
}
