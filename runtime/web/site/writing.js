/** The tab Write: continues a prompt, token by token, and continues from another token that the reader chooses. */

import { TextPane } from "./text_pane.js";
import { count, factSpans, finished, get, make } from "./view.js";

/** @import { Ending, Prompt, Token } from "./model_worker.js" */
/** @import { Run } from "./runs.js" */
/** @import { Settings } from "./settings.js" */

export class Writing {
  /**
   * @param {Settings} settings
   * @param {Run} run
   */
  constructor(settings, run) {
    this.settings = settings;
    this.run = run;
    this.prompt = get("prompt", HTMLTextAreaElement);
    this.generate = get("generate", HTMLButtonElement);
    this.again = get("again", HTMLButtonElement);
    this.stop = get("stop", HTMLButtonElement);
    this.facts = make("span", { class: "status" });
    // A screen reader speaks it; it should not speak numbers that change all the time.
    this.state = make("span", { class: "state", role: "status" });
    get("status", HTMLElement).append(this.facts, this.state);
    this.pane = new TextPane(get("text", HTMLElement), get("bars", HTMLElement), (place, id) => this.branch(place, id));
    this.generate.addEventListener("click", () => this.write());
    this.again.addEventListener("click", () => {
      settings.seed.value = "";
      this.write();
    });
    this.stop.addEventListener("click", () => run.stop());
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !event.shiftKey) return;
      event.preventDefault();
      if (!this.generate.disabled) this.write();
    });
  }

  /** Offer prompts to begin with. @param {string[]} prompts */
  offer(prompts) {
    this.prompt.value = prompts[0] ?? "";
    const row = get("prompts", HTMLElement);
    row.hidden = prompts.length < 2;
    for (const text of prompts) {
      const button = make("button", { type: "button", class: "quiet" }, text);
      button.addEventListener("click", () => (this.prompt.value = text));
      row.append(button);
    }
  }

  /** Enable what can be pressed now. @param {boolean} isReady @param {boolean} isRunning */
  setState(isReady, isRunning) {
    const focused = document.activeElement;
    this.generate.disabled = this.again.disabled = !isReady;
    this.stop.disabled = !isRunning;
    // A button that is disabled loses the focus of the keyboard.
    if (isRunning && (focused === this.generate || focused === this.again)) this.stop.focus();
    if (isReady && focused === this.stop) this.generate.focus();
  }

  /** Continue the prompt. */
  write() {
    return this.continue({ text: this.prompt.value, ids: [] }, []);
  }

  /**
   * Continue from another token.
   * @param {number} place from 0
   * @param {number} id
   */
  branch(place, id) {
    if (!this.run.isReady) return;
    const token = this.pane.tokens[place];
    const chosen = token?.alternatives.find((each) => each.id === id);
    if (!token || !chosen) return;
    const before = this.pane.tokens.slice(0, place);
    const kept = [...before, { ...token, ...chosen, text: chosen.piece }];
    return this.continue({ text: this.pane.prompt ?? "", ids: kept.map((each) => each.id) }, kept);
  }

  /**
   * @param {Prompt} prompt
   * @param {Token[]} begun tokens that the text begins with
   */
  async continue(prompt, begun) {
    this.show([], "reading the prompt ...");
    await this.run.start("write", {
      argument: () => ({ prompt, options: this.settings.read() }),
      begin: () => this.pane.start(prompt.text, begun),
      report: (reports) => {
        this.pane.add(reports.filter((each) => "id" in each));
        const rest = reports.filter((each) => !("id" in each) && each.text).map((each) => each.text);
        if (rest.length) this.pane.written?.append(...rest);
        this.show([["tokens", count(this.pane.tokens.length)]], "writing ...");
      },
      end: (/** @type {Ending} */ ending) => this.showEnding(ending, begun.length),
      fail: (problem) => this.show([], problem, true),
    });
    if (this.pane.written) this.pane.finish();
  }

  /** @param {Ending} ending @param {number} begun */
  showEnding({ reason, seed, promptTokens, firstTokenSeconds, tokensPerSecond }, begun) {
    const orDash = (/** @type {number} */ value, /** @type {(value: number) => string} */ form) => (Number.isNaN(value) ? "-" : form(value));
    this.show(
      [
        ["prompt", count(promptTokens - begun)],
        ["tokens", count(this.pane.tokens.length)],
        ["tokens/s", orDash(tokensPerSecond, (value) => value.toFixed(1))],
        ["first token", orDash(firstTokenSeconds, (value) => `${Math.round(1000 * value)} ms`)],
        ["seed", seed],
      ],
      finished(reason),
    );
  }

  /** @param {[string, string][]} facts @param {string} message @param {boolean} isProblem */
  show(facts, message, isProblem = false) {
    this.facts.replaceChildren(...factSpans(facts));
    this.state.className = isProblem ? "problem" : "state";
    if (this.state.textContent !== message) this.state.textContent = message;
  }
}
