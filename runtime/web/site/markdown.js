/**
 * Shows Markdown as elements. A text of a model is untrusted: only these elements are made, every text is set as text, HTML is shown as it
 * was written, pictures become links, and links lead to `http`, `https` and `mailto` alone.
 */

import { copyButton } from "./copying.js";
import { make } from "./view.js";

/** @import { Resource } from "./site_file.js" */
/** @import { MarkedToken, Token, Tokens } from "marked" */

const SAFE_LINK = /^(https?:|mailto:)/i;

export class Markdown {
  /** @param {string} address of the site @param {Resource} library */
  constructor(address, library) {
    this.worker = new Worker(new URL("markdown_worker.js", import.meta.url), { type: "module" });
    this.worker.postMessage({ address, library });
    /** @type {((tokens: Token[] | null) => void)[]} */
    this.waiting = [];
    this.worker.onmessage = ({ data }) => this.waiting.shift()?.(data.tokens);
  }

  /**
   * The tokens of a text; null if it cannot be read.
   * @param {string} text
   * @returns {Promise<Token[] | null>}
   */
  read(text) {
    this.worker.postMessage({ text });
    return new Promise((resolve) => this.waiting.push(resolve));
  }
}

/** An element whose text grows, and is drawn again when the worker has read what came last. */
export class MarkdownText {
  /** @param {Markdown} markdown */
  constructor(markdown) {
    this.markdown = markdown;
    this.element = make("div", { class: "markdown" });
    this.text = "";
    this.isReading = false;
  }

  /** @param {string} text */
  async show(text) {
    if (text === this.text) return;
    if (!this.text) this.element.append(make("p", {}, text));
    this.text = text;
    if (this.isReading) return;
    this.isReading = true;
    for (let read = ""; read !== this.text; ) {
      read = this.text;
      const tokens = await this.markdown.read(read);
      if (tokens) this.element.replaceChildren(...blocks(tokens));
      else this.element.replaceChildren(make("p", { class: "plain" }, this.text));
    }
    this.isReading = false;
    this.element.dispatchEvent(new Event("drawn", { bubbles: true }));
  }
}

/** @param {Token[]} tokens @returns {Node[]} */
const blocks = (tokens) => tokens.map((each) => block(/** @type {MarkedToken} */ (each))).filter((each) => each !== null);

/** @param {MarkedToken} token @returns {Node | null} */
function block(token) {
  switch (token.type) {
    case "space":
    case "def":
    case "checkbox":
      return null;
    case "heading":
      // Below the headings of the page.
      return make(/** @type {"h3"} */ (`h${Math.min(6, token.depth + 2)}`), {}, ...inlines(token.tokens));
    case "code":
      return code(token);
    case "blockquote":
      return make("blockquote", {}, ...blocks(token.tokens));
    case "hr":
      return make("hr");
    case "list":
      return token.ordered ? make("ol", { start: token.start || 1 }, ...token.items.map(item)) : make("ul", {}, ...token.items.map(item));
    case "table":
      return table(token);
    case "paragraph":
      return make("p", {}, ...inlines(token.tokens));
    case "text": // of an item of a list
      return make("span", {}, ...(token.tokens ? inlines(token.tokens) : [token.text]));
    default:
      return make("p", {}, token.raw);
  }
}

/** @param {Tokens.ListItem} token */
function item({ task, checked, tokens }) {
  return make("li", {}, ...(task ? [checked ? "☑ " : "☐ "] : []), ...blocks(tokens));
}

/** A block of code, with its language and a button that copies it. @param {Tokens.Code} token */
function code({ lang = "", text }) {
  const head = make("header", {}, make("span", {}, lang.split(/\s/)[0] || "code"), copyButton(() => text, "Copy code"));
  return make("div", { class: "code" }, head, make("pre", { tabindex: 0 }, make("code", {}, text)));
}

/** @param {Tokens.Table} token */
function table({ header, rows }) {
  const row = (/** @type {"th" | "td"} */ name, /** @type {Tokens.TableCell[]} */ cells) =>
    make("tr", {}, ...cells.map((cell) => make(name, cell.align ? { class: cell.align } : {}, ...inlines(cell.tokens))));
  const all = make("table", {}, make("thead", {}, row("th", header)), make("tbody", {}, ...rows.map((cells) => row("td", cells))));
  return make("div", { class: "scroll", tabindex: 0 }, all);
}

/** @param {Token[]} tokens @returns {(Node | string)[]} */
const inlines = (tokens) => tokens.map((each) => inline(/** @type {MarkedToken} */ (each)));

/** @param {MarkedToken} token @returns {Node | string} */
function inline(token) {
  switch (token.type) {
    case "strong":
    case "em":
    case "del":
      return make(token.type, {}, ...inlines(token.tokens));
    case "codespan":
      return make("code", {}, token.text);
    case "br":
      return make("br");
    case "link":
      return link(token.href, ...inlines(token.tokens));
    case "image": // its server would learn what was said
      return link(token.href, token.text || token.href);
    case "escape":
    case "text":
      return token.text;
    default:
      return token.raw;
  }
}

/** @param {string} href @param {...(Node | string)} children */
function link(href, ...children) {
  if (!SAFE_LINK.test(href)) return make("span", {}, ...children);
  return make("a", { href, target: "_blank", rel: "noopener noreferrer" }, ...children);
}
