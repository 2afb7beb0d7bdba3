/**
 * The text of the tab Write: the prompt, then every token in the colour of its probability; and the alternatives of a token.
 *
 * A token that the pointer is over shows its alternatives; one that is pressed, or reached by the arrow keys, keeps them. Selecting or
 * copying gives exactly the text: the style sheet draws the signs for line ends and similar characters.
 */

import { copyButton } from "./copying.js";
import { BANDS, bandOf, make, percent, visible } from "./view.js";

/** @import { Token } from "./model_worker.js" */

const INVITATION =
  "The text appears here, each token in the colour of the probability that the model gave it. Press a token to see the ten most " +
  "likely ones at its position, and one of those to continue from there.";

export class TextPane {
  /**
   * @param {HTMLElement} text
   * @param {HTMLElement} bars
   * @param {(place: number, id: number) => void} onContinue is called when a reader chooses another token at a place, from 0
   */
  constructor(text, bars, onContinue) {
    this.text = text;
    this.bars = bars;
    this.onContinue = onContinue;
    /** @type {Token[]} */
    this.tokens = [];
    /** @type {HTMLElement[]} */
    this.spans = [];
    this.selected = -1;
    this.choosable = false;
    this.sheet = make("div", { class: "sheet", tabindex: 0, role: "group", "aria-label": "Text; left and right arrow go from token to token" });
    this.clear();
    this.sheet.addEventListener("click", (event) => {
      if (getSelection()?.isCollapsed) this.select(this.placeOf(event));
    });
    this.sheet.addEventListener("pointerover", (event) => {
      const place = this.placeOf(event);
      if (event.pointerType === "mouse" && place >= 0 && !this.isGrowing) this.show(place);
    });
    this.sheet.addEventListener("pointerleave", () => this.show(this.selected));
    this.sheet.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      this.select(Math.min(Math.max(this.selected + step, 0), this.tokens.length - 1));
    });
    this.bars.addEventListener("click", (event) => this.press(event));
  }

  /** Whether tokens are being added. */
  get isGrowing() {
    return !this.choosable;
  }

  /** The place of the token that an event is about; -1 if none. @param {Event} event */
  placeOf(event) {
    const span = event.target instanceof Element ? event.target.closest(".token") : null;
    return span instanceof HTMLElement ? Number(span.dataset.place) : -1;
  }

  /** Show the invitation. */
  clear() {
    this.text.classList.add("empty");
    this.text.replaceChildren(make("p", { class: "hint" }, INVITATION), legend());
    this.bars.hidden = true;
  }

  /**
   * Begin a text.
   * @param {string} prompt
   * @param {Token[]} tokens that it begins with
   */
  start(prompt, tokens = []) {
    this.choosable = false;
    this.tokens = [];
    this.spans = [];
    this.selected = -1;
    this.prompt = prompt;
    this.written = make("span", { class: "new" });
    this.sheet.replaceChildren(make("span", { class: "prompt" }, prompt), this.written);
    this.text.classList.remove("empty");
    const copy = copyButton(() => this.sheet.textContent ?? "", "Copy text");
    this.text.replaceChildren(make("header", {}, make("h2", {}, "Text"), copy), this.sheet, legend());
    this.bars.hidden = false;
    this.bars.replaceChildren(make("h2", {}, "Alternatives"), make("p", {}, "reading the prompt ..."));
    this.add(tokens);
  }

  /** Add tokens at the end; the last one is selected while the text grows. @param {Token[]} tokens */
  add(tokens) {
    if (!tokens.length) return;
    const follows = this.sheet.scrollHeight - this.sheet.scrollTop - this.sheet.clientHeight < 40;
    for (const token of tokens) {
      const [blanks, span] = spanOf(token, this.tokens.length);
      this.written?.append(blanks, span);
      this.tokens.push(token);
      this.spans.push(span);
    }
    this.select(this.tokens.length - 1, { scroll: false });
    if (follows) this.sheet.scrollTop = this.sheet.scrollHeight;
  }

  /** The text is finished: its tokens can be chosen. */
  finish() {
    this.choosable = true;
    if (this.tokens.length) this.show(this.selected);
    else this.bars.hidden = true;
  }

  /**
   * Select a token, whose alternatives stay in sight.
   * @param {number} place from 0
   */
  select(place, { scroll = true } = {}) {
    const span = this.spans[place];
    if (!span) return;
    this.spans[this.selected]?.removeAttribute("aria-current");
    span.setAttribute("aria-current", "true");
    this.selected = place;
    if (scroll) span.scrollIntoView({ block: "nearest" });
    this.show(place);
  }

  /** Show the alternatives at a place. @param {number} place from 0 */
  show(place) {
    const token = this.tokens[place];
    if (!token) return;
    const note = `What the model expected as token ${place + 1}, before temperature and truncation.`;
    const lines = token.alternatives.map((each) =>
      bar(each.piece, each.probability, each.id === token.id, this.choosable && each.id !== token.id ? { place, id: each.id } : null),
    );
    if (!token.alternatives.some((each) => each.id === token.id)) lines.push(bar(token.piece, token.probability, true, null));
    this.bars.replaceChildren(
      make("h2", {}, "Alternatives"),
      make("p", {}, this.choosable ? `${note} Choose another to continue from it.` : note),
      make("p", { class: "steps" }, stepButton("← token before", place - 1, this.tokens), stepButton("token after →", place + 1, this.tokens)),
      make("table", {}, make("tbody", {}, ...lines)),
    );
  }

  /** A button of the alternatives was pressed. @param {Event} event */
  press(event) {
    const button = event.target instanceof Element ? event.target.closest("button") : null;
    if (!button) return;
    const place = Number(button.dataset.place);
    if (button.dataset.id !== undefined) this.onContinue(place, Number(button.dataset.id));
    else {
      const index = [...this.bars.querySelectorAll(".steps button")].indexOf(button);
      this.select(place);
      /** @type {HTMLElement | undefined} */ (this.bars.querySelectorAll(".steps button")[index])?.focus();
    }
  }
}

/**
 * A token; leading blanks are outside its coloured part, so that it reads as text.
 * @param {Token} token
 * @param {number} place
 * @returns {[blanks: string, span: HTMLElement]}
 */
function spanOf(token, place) {
  let [, blanks, rest] = /** @type {RegExpExecArray} */ (/^( *)([^]*)$/.exec(token.text));
  const span = make("span", { class: `token band-${bandOf(token.probability)}`, "data-place": place, title: percent(token.probability) });
  if (!rest) {
    // Nothing visible to press.
    span.append(sign(visible(token.piece)), blanks);
    blanks = "";
  } else {
    const lines = rest.split("\n");
    lines.forEach((line, index) => span.append(line, ...(index < lines.length - 1 ? [sign("⏎"), "\n"] : [])));
  }
  return [blanks, span];
}

/** A sign for an invisible character; not part of the text. @param {string} shown */
const sign = (shown) => make("i", { "data-sign": shown });

/** The legend of the colours. */
const legend = () =>
  make("ul", { class: "bands", "aria-label": "Probability of a token" }, ...BANDS.map(([name], index) => make("li", { class: `band-${index}` }, name)));

/**
 * @param {string} name
 * @param {number} place
 * @param {Token[]} tokens
 */
const stepButton = (name, place, tokens) =>
  make("button", { type: "button", "data-place": place, disabled: place < 0 || place >= tokens.length }, name);

/**
 * One row of the alternatives; one that can be chosen is a button.
 * @param {string} piece
 * @param {number} probability
 * @param {boolean} drawn
 * @param {{place: number, id: number} | null} choice
 */
function bar(piece, probability, drawn, choice) {
  const token = make("code", {}, visible(piece));
  const title = "Continue from here with this token";
  const name = choice ? make("button", { type: "button", "data-place": choice.place, "data-id": choice.id, title }, token) : token;
  const track = make("span");
  track.style.width = `${(100 * probability).toFixed(2)}%`;
  return make(
    "tr",
    { class: drawn ? "drawn" : "other" },
    make("th", { scope: "row" }, name, ...(drawn ? [make("span", { class: "mark" }, "drawn")] : [])),
    make("td", { class: "track" }, track),
    make("td", { class: "amount" }, percent(probability)),
  );
}
