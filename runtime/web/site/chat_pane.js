/** The tab Chat: a conversation by the model's own template, which the page keeps until it is closed. */

import { AnswerView } from "./answer_view.js";
import { pictureView } from "./chat_pictures.js";
import { copyButton } from "./copying.js";
import { count, factSpans, finished, make } from "./view.js";

/** @import { Chosen } from "./chat_pictures.js" */
/** @import { Markdown } from "./markdown.js" */
/** @import { Ending, Message } from "./model_worker.js" */
/** @import { Marks } from "./site_file.js" */

export class ChatPane {
  /** @param {HTMLElement} log @param {Markdown} markdown @param {Marks} marks */
  constructor(log, markdown, marks) {
    this.log = log;
    this.markdown = markdown;
    this.marks = marks;
    this.follows = true;
    log.addEventListener("scroll", () => (this.follows = log.scrollHeight - log.scrollTop - log.clientHeight < 60));
    log.addEventListener("drawn", () => this.follow());
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
    for (const { src } of this.log.querySelectorAll("img")) if (src.startsWith("blob:")) URL.revokeObjectURL(src);
    this.show();
  }

  /** Show the end, unless the reader has scrolled up. */
  follow() {
    if (this.follows) this.log.scrollTop = this.log.scrollHeight;
  }

  /** Add what the reader says. @param {string} text @param {readonly Chosen[]} pictures */
  say(text, pictures) {
    const images = pictures.map(({ pixels }) => /** @type {const} */ ({ type: "image", image: pixels }));
    const words = text ? [/** @type {const} */ ({ type: "text", text })] : [];
    this.messages.push({ role: "user", content: images.length ? [...images, ...words] : text });
    if (this.messages.length === 1) this.log.replaceChildren();
    const said = make("p", { class: "said" }, ...pictures.map(pictureView), text);
    this.log.append(make("article", { class: "turn user", "aria-label": "You" }, said));
    this.follows = true;
    this.follow();
  }

  /** Take away the last answer, to make another. */
  dropAnswer() {
    if (this.messages.at(-1)?.role !== "assistant") return;
    this.messages.pop();
    this.log.lastElementChild?.remove();
  }

  /** Begin an answer; returns the function that adds text to it, and the one that ends it. */
  answer() {
    const view = new AnswerView(this.markdown, this.marks);
    const turn = make("article", { class: "turn assistant", "aria-label": "Model", "aria-busy": "true" }, view.element);
    this.log.append(turn);
    const message = { role: /** @type {const} */ ("assistant"), content: "" };
    this.messages.push(message);
    return {
      /** @param {string} text @param {boolean} isThinking whether it begins within its thinking */
      add: (text, isThinking) => {
        message.content += text;
        view.isThinking ||= isThinking;
        view.show(message.content, true);
        this.follow();
      },
      /** @param {Ending | null} ending null if it failed @param {number} tokens @param {number} contextLength */
      end: (ending, tokens, contextLength) => {
        turn.removeAttribute("aria-busy");
        view.show(message.content, false);
        if (ending) {
          const copy = copyButton(() => message.content, "Copy answer");
          turn.append(make("p", { class: "figures" }, ...figures(ending, tokens, contextLength), copy));
        } else if (!message.content) this.dropAnswer();
        this.follow();
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
