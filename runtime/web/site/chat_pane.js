/** The tab Chat: a conversation by the model's own template, which the page keeps until it is closed. */

import { count, factSpans, finished, make } from "./view.js";

/** @import { Ending, Message } from "./model_worker.js" */

export class ChatPane {
  /** @param {HTMLElement} log */
  constructor(log) {
    this.log = log;
    /** @type {Message[]} */
    this.messages = [];
    this.show();
  }

  /** Whether there is an answer that can be made again. */
  get canRetry() {
    return this.messages.at(-1)?.role === "assistant" || this.messages.at(-1)?.role === "user";
  }

  /** Begin a new conversation. */
  clear() {
    this.messages = [];
    this.show();
  }

  /** Add what the reader says. @param {string} text */
  say(text) {
    this.messages.push({ role: "user", content: text });
    if (this.messages.length === 1) this.log.replaceChildren();
    this.log.append(make("article", { class: "turn user", "aria-label": "You" }, make("p", { class: "said" }, text)));
    this.log.scrollTop = this.log.scrollHeight;
  }

  /** Take away the last answer, to make another. */
  dropAnswer() {
    if (this.messages.at(-1)?.role !== "assistant") return;
    this.messages.pop();
    this.log.lastElementChild?.remove();
  }

  /** Begin an answer; returns the function that adds text to it, and the one that ends it. */
  answer() {
    const said = make("p", { class: "said" });
    const turn = make("article", { class: "turn assistant", "aria-label": "Model", "aria-busy": "true" }, said);
    this.log.append(turn);
    const message = /** @type {Message} */ ({ role: "assistant", content: "" });
    this.messages.push(message);
    return {
      /** @param {string} text */
      add: (text) => {
        const follows = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 60;
        message.content += text;
        said.textContent = message.content;
        if (follows) this.log.scrollTop = this.log.scrollHeight;
      },
      /** @param {Ending | null} ending null if it failed @param {number} tokens @param {number} contextLength */
      end: (ending, tokens, contextLength) => {
        turn.removeAttribute("aria-busy");
        if (ending) turn.append(make("p", { class: "figures" }, ...figures(ending, tokens, contextLength)));
        else if (!message.content) this.dropAnswer();
        this.log.scrollTop = this.log.scrollHeight;
      },
    };
  }

  /** What an empty conversation shows. */
  show() {
    this.log.replaceChildren(make("p", { class: "empty" }, "Ask something. The conversation stays in this browser, and ends with the page."));
  }
}

/**
 * @param {Ending} ending
 * @param {number} tokens
 * @param {number} contextLength
 */
function figures(ending, tokens, contextLength) {
  const speed = Number.isNaN(ending.tokensPerSecond) ? "-" : ending.tokensPerSecond.toFixed(1);
  const used = `${count(ending.promptTokens + tokens)} of ${count(contextLength)}`;
  const facts = factSpans([["tokens", count(tokens)], ["tokens/s", speed], ["context", used], ["seed", ending.seed]]);
  return ending.reason === "eos" ? facts : [...facts, make("span", {}, finished(ending.reason))];
}
