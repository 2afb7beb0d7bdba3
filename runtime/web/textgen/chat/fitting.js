/**
 * Messages in other orders, for a template that refuses theirs, or that leaves out what the system says, as Python's `chat.fitting`.
 *
 * What a message says is kept, and where it says it as far as the template allows.
 */

import { RefusedError } from "../errors.js";
import { textOf } from "./parts.js";

/** @import { Message } from "./parts.js" */
/** @typedef {readonly object[] | null} Tools */
/** @typedef {(messages: readonly Message[], tools: Tools) => string} Write */
/** @typedef {(messages: Message[]) => Message[]} Step */

const MARK = "what-the-system-says";
const ROLES = ["system", "user", "assistant", "tool"];

/** Roles that no template knows become one that all know. @type {Step} */
const knownRoles = (messages) =>
  messages.map((message) => (ROLES.includes(message["role"]) ? message : { ...message, role: "user" }));

/**
 * System messages at the beginning become one; a later one is given as the user's, so that what was cached before it stays.
 * @type {Step}
 */
function oneSystem(messages) {
  const found = messages.findIndex((message) => message["role"] !== "system");
  const count = found < 0 ? messages.length : found;
  const rest = messages.slice(count).map((message) => (message["role"] === "system" ? { ...message, role: "user" } : message));
  return [...(count ? [messages.slice(0, count).reduce(joined)] : []), ...rest];
}

/** Neighbours of one role become one message, and an answer that comes first answers an empty one. @type {Step} */
function inTurns(messages) {
  /** @type {Message[]} */
  const made = [];
  for (const message of messages) {
    const last = made.at(-1);
    if (last && last["role"] === message["role"] && message["role"] !== "tool") {
      made[made.length - 1] = joined(last, message);
      continue;
    }
    if (message["role"] === "assistant" && made.every((each) => each["role"] === "system")) made.push({ role: "user", content: "" });
    made.push(message);
  }
  return made;
}

/** A user's words directly after a tool's result become a part of that. @type {Step} */
function afterResults(messages) {
  /** @type {Message[]} */
  const made = [];
  for (const message of messages) {
    const last = made.at(-1);
    if (last?.["role"] === "tool" && message["role"] === "user") {
      made[made.length - 1] = joined(last, { content: message["content"] });
    } else made.push(message);
  }
  return made;
}

/** Ids of calls of nine letters and digits, the form that every template takes. @type {Step} */
function shortIds(messages) {
  /** @type {Map<string, string>} */
  const ids = new Map();
  const short = (/** @type {unknown} */ given) => {
    if (typeof given !== "string" || /^[A-Za-z0-9]{9}$/.test(given)) return given;
    if (!ids.has(given)) ids.set(given, `call${String(ids.size).padStart(5, "0")}`);
    return ids.get(given);
  };
  return messages.map((message) => {
    const made = { ...message };
    const { tool_calls: calls, tool_call_id: id } = message;
    if (Array.isArray(calls)) made["tool_calls"] = calls.map((call) => ({ ...call, id: short(call?.id) }));
    if (id !== undefined && id !== null) made["tool_call_id"] = short(id);
    return made;
  });
}

/** Results of tools are given by the user. @type {Step} */
const resultsAsText = (messages) =>
  messages.map((message) =>
    message["role"] === "tool"
      ? { role: "user", content: `<tool_response>\n${textOf(message["content"])}\n</tool_response>` }
      : message,
  );

/** System messages are the beginning of the user's first message. @type {Step} */
function systemInUser(messages) {
  const systems = messages.filter((message) => message["role"] === "system");
  const rest = messages.filter((message) => message["role"] !== "system");
  if (!systems.length) return messages;
  const words = { ...systems.reduce(joined), role: "user" };
  const place = rest.findIndex((message) => message["role"] === "user");
  if (place < 0) return [words, ...rest];
  return rest.with(place, joined(words, /** @type {Message} */ (rest[place])));
}

/** Two messages as one, with all that either has. @param {Message} first @param {Message} second @returns {Message} */
function joined(first, second) {
  const contents = [first["content"], second["content"]];
  const content = contents.some(Array.isArray)
    ? contents.filter(Boolean).flatMap((each) => (Array.isArray(each) ? each : [{ type: "text", text: textOf(each) }]))
    : contents.map(textOf).filter(Boolean).join("\n\n");
  const calls = [first["tool_calls"], second["tool_calls"]].filter(Array.isArray).flat();
  return { ...first, ...second, content, ...(calls.length ? { tool_calls: calls } : {}) };
}

/** In the order in which they are applied, to messages of known roles and ids. */
const STEPS = [oneSystem, resultsAsText, inTurns, afterResults, systemInUser];
/** Those with the fewest changes come first; those without results of tools come last. */
const CHOICES = STEPS.reduce((choices, step) => [...choices, ...choices.map((steps) => [...steps, step])], /** @type {Step[][]} */ ([[]]))
  .sort((one, other) => compare(places(one), places(other)))
  .sort((one, other) => Number(one.includes(resultsAsText)) - Number(other.includes(resultsAsText)) || one.length - other.length);

/** @param {Step[]} steps */
function places(steps) {
  return steps.map((step) => STEPS.indexOf(step)).join("");
}

/** @param {string} one @param {string} other */
function compare(one, other) {
  return one < other ? -1 : Number(one > other);
}

/** The messages in other orders, each once, those with the fewest changes first. @param {readonly Message[]} messages */
function* ordersOf(messages) {
  const seen = new Set([JSON.stringify(messages)]);
  const known = shortIds(knownRoles([...messages]));
  for (const steps of CHOICES) {
    const made = steps.reduce((order, step) => step(order), known);
    const told = JSON.stringify(made);
    if (!seen.has(told)) yield made;
    seen.add(told);
  }
}

/**
 * The messages as a template writes them, in another order if it refuses theirs or leaves out a system message.
 *
 * Raises `RefusedError` if it refuses them in every order.
 * @param {Write} write which raises `RefusedError` for messages that the template does not take
 * @param {readonly Message[]} messages
 * @param {Tools} tools
 */
export function fitted(write, messages, tools = null) {
  let found;
  let refusal;
  for (const order of [messages, ...ordersOf(messages)]) {
    try {
      const text = written(write, order, tools);
      found ??= text;
      if (isWhole(write, order, tools, text)) return text;
    } catch (error) {
      if (!(error instanceof RefusedError)) throw error;
      refusal ??= error;
    }
  }
  if (found !== undefined) return found;
  throw refusal;
}

/**
 * Whether a text has what the system says; a template may write it in other words, and is asked again with a mark.
 * @param {Write} write
 * @param {readonly Message[]} messages
 * @param {Tools} tools
 * @param {string} text
 */
function isWhole(write, messages, tools, text) {
  const systems = messages.filter((message) => message["role"] === "system");
  if (systems.every((message) => text.includes(textOf(message["content"]).trim()))) return true;
  const marked = messages.map((message) => (message["role"] === "system" ? { ...message, content: MARK } : message));
  return written(write, marked, tools).split(MARK).length > systems.length;
}

/**
 * The messages; raises `RefusedError`.
 * @param {Write} write
 * @param {readonly Message[]} messages
 * @param {Tools} tools
 */
function written(write, messages, tools) {
  try {
    return write(messages, tools);
  } catch (error) {
    if (tools !== null || !(error instanceof RefusedError)) throw error;
    return write(messages, []); // some templates need a list of tools
  }
}
