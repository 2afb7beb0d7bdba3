/**
 * The drawer with the sampling options: their ranges, explanations and values.
 */

import { get, make } from "./view.js";

/** @import { Options } from "./model_worker.js" */

/** @typedef {{ minimum: number, maximum: number, step: number, label: string, hint: string, value: number }} Range */

/** The options, with the ranges and words of `onnx-textgen demo`, and the defaults of Python. @type {Record<string, Range>} */
const RANGES = {
  max_new_tokens: { minimum: 1, maximum: 1024, step: 1, value: 256, label: "Max new tokens", hint: "The text ends here at the latest." },
  temperature: {
    minimum: 0, maximum: 2, step: 0.05, value: 0.8, label: "Temperature",
    hint: "Higher is bolder; 0 always takes the most likely token, and truncation has no effect.",
  },
  top_k: { minimum: 0, maximum: 200, step: 1, value: 0, label: "Top-k", hint: "Keep only the k most likely tokens; 0 keeps all." },
  top_p: {
    minimum: 0.01, maximum: 1, step: 0.01, value: 1, label: "Top-p",
    hint: "Keep only the fewest tokens that together hold this share of the probability; 1 keeps all.",
  },
  min_p: {
    minimum: 0, maximum: 1, step: 0.01, value: 0, label: "Min-p",
    hint: "Keep only tokens at least this many times as likely as the most likely one; 0 keeps all.",
  },
  repetition_penalty: {
    minimum: 1, maximum: 2, step: 0.01, value: 1, label: "Repetition penalty",
    hint: "Makes tokens that occurred already less likely; 1 changes nothing.",
  },
};

export class Settings {
  constructor() {
    /** @type {Record<string, HTMLInputElement>} */
    this.numbers = {};
    const fields = Object.entries(RANGES).map(([name, range]) => this.field(name, range));
    this.seed = make("input", { type: "text", id: "seed", inputmode: "numeric", placeholder: "a new one each time", autocomplete: "off", "aria-describedby": "seed-hint" });
    const hint = make("span", { class: "hint", id: "seed-hint" }, "The same seed gives the same text, here as in Python.");
    get("sampling", HTMLElement).append(...fields, make("p", { class: "field" }, make("label", { for: "seed" }, "Seed"), hint, this.seed));
    const drawer = get("settings", HTMLDialogElement);
    get("open-settings", HTMLButtonElement).addEventListener("click", () => drawer.showModal());
    drawer.addEventListener("click", (event) => event.target === drawer && drawer.close()); // the backdrop belongs to the drawer
  }

  /**
   * A slider and a number that follow each other.
   * @param {string} name
   * @param {Range} range
   */
  field(name, { minimum, maximum, step, value, label, hint }) {
    const limits = { min: minimum, max: maximum, step, value };
    const number = make("input", { type: "number", id: name, "aria-describedby": `${name}-hint`, ...limits });
    const slider = make("input", { type: "range", "aria-label": `${label}, slider`, ...limits });
    slider.addEventListener("input", () => (number.value = slider.value));
    number.addEventListener("input", () => (slider.value = number.value));
    this.numbers[name] = number;
    return make(
      "div",
      { class: "field" },
      make("label", { for: name }, label),
      make("span", { class: "hint", id: `${name}-hint` }, hint),
      make("div", { class: "pair" }, slider, number),
    );
  }

  /**
   * Show a package's defaults, and end the range of lengths at its context.
   * @param {Record<string, number>} defaults
   * @param {number} contextLength
   */
  setDefaults(defaults, contextLength) {
    for (const [name, number] of Object.entries(this.numbers)) {
      const value = defaults[name] ?? RANGES[name]?.value;
      if (value === undefined) continue;
      if (name === "max_new_tokens") this.setLimit(number, Math.min(contextLength, Number(number.max)));
      number.value = String(Math.min(value, Number(number.max)));
      number.dispatchEvent(new Event("input"));
    }
  }

  /** @param {HTMLInputElement} number @param {number} limit */
  setLimit(number, limit) {
    number.max = String(limit);
    const slider = number.previousElementSibling;
    if (slider instanceof HTMLInputElement) slider.max = String(limit);
  }

  /**
   * The options for the worker; raises `Error` for a value that is no number in its range.
   * @returns {Options}
   */
  read() {
    /** @type {Options} */
    const options = {};
    for (const [name, number] of Object.entries(this.numbers)) {
      const { label, minimum } = /** @type {Range} */ (RANGES[name]);
      const value = number.valueAsNumber;
      if (!(value >= minimum && value <= Number(number.max))) {
        throw new Error(`${label} in the settings should be from ${minimum} to ${number.max}`);
      }
      options[name] = value;
    }
    const seed = this.seed.value.trim();
    if (seed && !/^\d{1,19}$/.test(seed)) throw new Error("the seed in the settings should be a whole number; leave it empty for a new one each time");
    if (seed) options.seed = seed;
    return options;
  }
}
