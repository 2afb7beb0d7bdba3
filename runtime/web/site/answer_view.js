/** An answer on the page: its text as Markdown, its thinking folded, and calls of functions as cards. */

import { divide } from "./division.js";
import { MarkdownText } from "./markdown.js";
import { make } from "./view.js";

/** @import { Markdown } from "./markdown.js" */
/** @import { Part } from "./division.js" */
/** @import { Marks } from "./site_file.js" */

/** @typedef {{ kind: Part["kind"], element: HTMLElement, show: (part: Part, isGrowing: boolean) => void }} PartView */

export class AnswerView {
  /** @param {Markdown} markdown @param {Marks} marks */
  constructor(markdown, marks) {
    this.markdown = markdown;
    this.marks = marks;
    this.element = make("div", { class: "said" });
    this.isThinking = false;
    /** @type {PartView[]} */
    this.views = [];
  }

  /** Show an answer, as far as it goes. @param {string} text @param {boolean} isGrowing */
  show(text, isGrowing) {
    const parts = divide(text, this.marks, { isThinking: this.isThinking, isGrowing });
    parts.forEach((part, place) => {
      let view = this.views[place];
      if (view?.kind !== part.kind) {
        for (const each of this.views.splice(place)) each.element.remove();
        view = VIEWS[part.kind](this.markdown);
        this.views.push(view);
        this.element.append(view.element);
      }
      view.show(part, isGrowing);
    });
    for (const each of this.views.splice(parts.length)) each.element.remove();
  }
}

/** @type {Record<Part["kind"], (markdown: Markdown) => PartView>} */
const VIEWS = {
  text: (markdown) => {
    const text = new MarkdownText(markdown);
    return { kind: "text", element: text.element, show: (part) => void text.show(part.text) };
  },
  thinking: (markdown) => {
    const title = make("summary");
    const text = new MarkdownText(markdown);
    return {
      kind: "thinking",
      element: make("details", { class: "thoughts" }, title, text.element),
      show: (part, isGrowing) => {
        title.textContent = part.isOver || !isGrowing ? "Thought" : "Thinking ...";
        void text.show(part.text);
      },
    };
  },
  call: () => {
    const title = make("summary");
    const call = make("code");
    const hint = make("p", { class: "hint" }, "This page has no functions, so the call is only shown.");
    return {
      kind: "call",
      element: make("details", { class: "thoughts call", open: true }, title, make("pre", { tabindex: 0 }, call), hint),
      show: (part) => {
        const { name, text } = readCall(part.text);
        title.replaceChildren("Call of a function", ...(name ? [" ", make("code", {}, name)] : []));
        call.textContent = text;
      },
    };
  },
};

/**
 * The name and the arguments of a call in JSON; of any other, its text.
 * @param {string} text
 */
function readCall(text) {
  try {
    const { name, arguments: values, parameters } = JSON.parse(text);
    if (typeof name === "string") return { name, text: JSON.stringify(values ?? parameters ?? {}, null, 2) };
  } catch {
    // Another form, or not whole yet.
  }
  return { name: "", text };
}
