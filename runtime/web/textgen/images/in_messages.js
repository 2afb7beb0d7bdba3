/** Pictures in the messages of a chat, as Python's `images.in_messages`: the chat template writes their places. */

import { TemplateError } from "../errors.js";
import { Picture } from "./pictures.js";

/** @import { ImageRecord } from "./pictures.js" */

/** Whether a part of a content is a picture that was read. @param {any} part @returns {part is { image: Picture }} */
export const isPicture = (part) => part?.type === "image" && part.image instanceof Picture;

/** The pictures in messages, in their order. @param {readonly any[]} messages */
export function picturesIn(messages) {
  return messages.flatMap(({ content }) => (Array.isArray(content) ? content.filter(isPicture).map(({ image }) => image) : []));
}

/** How often a text has the placeholder. @param {readonly string[]} pieces @param {string} placeholder */
export const placesIn = (pieces, placeholder) => pieces.reduce((sum, text) => sum + text.split(placeholder).length - 1, 0);

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
