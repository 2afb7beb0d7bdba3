/**
 * Contents of messages as text, as Python's `chat.parts`: models here read text, and a part that is none is named in its place.
 */

import { TemplateError, shown } from "../errors.js";
import { isPlace } from "../images/in_messages.js";

/** Where parts of all wire formats have their text. */
const TEXT_KEYS = ["text", "refusal"];
/** Types of parts that are no text of an answer. */
const THOUGHTS = ["thinking", "redacted_thinking", "reasoning", "reasoning_text", "summary_text"];
/** Templates know OpenAI's newer and older roles by these names. */
const TODAYS_ROLES = new Map([
  ["developer", "system"],
  ["function", "tool"],
]);
const KIND = /^[\w-]{1,64}$/;

/** @typedef {Record<string, any>} Message */

/** The id of a call in OpenAI's older form, which has none, by the place of its message. @param {number} place */
const callId = (place) => `call${String(place).padStart(5, "0")}`;

/** @param {any} part @returns {string | undefined} */
function textIn(part) {
  if (typeof part === "string") return part;
  if (THOUGHTS.includes(part?.type)) return "";
  return TEXT_KEYS.map((key) => part?.[key]).find((text) => typeof text === "string");
}

/** A short text that takes the place of a part. @param {any} part */
function named(part) {
  return `[${typeof part?.type === "string" && KIND.test(part.type) ? part.type : "a part"} left out]`;
}

/** The text of a content, which may be in parts or missing. @param {unknown} content @returns {string} */
export function textOf(content) {
  if (!Array.isArray(content)) return typeof content === "string" ? content : "";
  return content.map((part) => textIn(part) ?? named(part)).join("");
}

/** A content with pictures that were read, in parts as templates know them; any other as text. @param {unknown} content */
function contentOf(content) {
  if (!Array.isArray(content) || !content.some(isPlace)) return textOf(content);
  return content.map((part) => (isPlace(part) ? part : { type: "text", text: textOf([part]) }));
}

/**
 * Messages of the roles that templates know, whose contents are text; a missing content is empty.
 *
 * Other parts (images, sounds, files) of earlier messages and of a tool's results become a short text that names them. Raises
 * `TemplateError` for one in the last message of a user that no answer follows: it is what is asked about.
 * @param {readonly object[]} messages
 * @returns {Message[]}
 */
export function readable(messages) {
  /** @type {readonly Message[]} */
  const given = messages;
  const answered = given.findLastIndex((message) => message["role"] === "assistant");
  return given.map(({ function_call: called, ...message }, place) => {
    const { role, content } = message;
    const unread = Array.isArray(content) ? content.filter((part) => textIn(part) === undefined && !isPlace(part)) : [];
    if (unread.length && place > answered && role === "user") {
      const what = "the models here read text, and pictures that `Model.readPicture` returned";
      throw new TemplateError(`${what}; found a part of the type ${shown(unread[0]?.type)}; leave it out`);
    }
    if (called && !message["tool_calls"]?.length) {
      message["tool_calls"] = [{ id: callId(place), type: "function", function: called }];
    }
    if (role === "function") message["tool_call_id"] ??= callId(place - 1);
    return { ...message, role: TODAYS_ROLES.get(role) ?? role, content: contentOf(content) };
  });
}
