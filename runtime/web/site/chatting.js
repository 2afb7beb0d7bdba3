/** The tab Chat: its field and buttons. */

import { ChatPane } from "./chat_pane.js";
import { ChatPictures } from "./chat_pictures.js";
import { Markdown } from "./markdown.js";
import { address } from "./opening.js";
import { get } from "./view.js";

/** @import { Run } from "./runs.js" */
/** @import { Resource, Site } from "./site_file.js" */
/** @import { Settings } from "./settings.js" */

export class Chatting {
  /**
   * @param {Settings} settings
   * @param {Run} run
   * @param {Site} site
   */
  constructor(settings, run, site) {
    const { marks, libraries } = site;
    this.marks = marks;
    this.settings = settings;
    this.run = run;
    this.contextLength = 0;
    this.pane = new ChatPane(get("messages", HTMLElement), new Markdown(address, /** @type {Resource} */ (libraries["marked"])), marks);
    this.message = get("message", HTMLTextAreaElement);
    this.send = get("send", HTMLButtonElement);
    this.stop = get("chat-stop", HTMLButtonElement);
    this.fresh = get("new-chat", HTMLButtonElement);
    this.retry = get("retry", HTMLButtonElement);
    this.system = get("system", HTMLTextAreaElement);
    this.status = get("chat-status", HTMLElement);
    this.pictures = new ChatPictures(
      (problem) => this.status.replaceChildren(problem),
      () => this.setState(run.isReady, !this.stop.hidden),
    );
    this.pictures.offer(site.vision !== null);
    this.send.addEventListener("click", () => this.say());
    this.stop.addEventListener("click", () => run.stop());
    this.fresh.addEventListener("click", () => {
      this.pane.clear();
      this.status.replaceChildren();
      this.setState(run.isReady, false);
      this.message.focus();
    });
    this.retry.addEventListener("click", () => {
      this.pane.dropAnswer();
      this.answer();
    });
    this.message.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.send.disabled) this.say();
    });
    this.message.addEventListener("input", () => this.fit());
  }

  /** The field is as high as its text, within limits of the style sheet. */
  fit() {
    this.message.style.height = "auto";
    this.message.style.height = `${this.message.scrollHeight + 2}px`;
  }

  /** Enable what can be pressed now. @param {boolean} isReady @param {boolean} isRunning */
  setState(isReady, isRunning) {
    this.send.disabled = !isReady || this.pictures.reading > 0;
    this.send.hidden = isRunning;
    this.stop.hidden = !isRunning;
    this.fresh.disabled = isRunning || !this.pane.messages.length;
    this.retry.disabled = !isReady || !this.pane.canRetry;
  }

  /** A mark that is a control token, which the text itself leaves out. @param {{ piece?: string }} report */
  markOf({ piece = "" }) {
    const all = Object.values(this.marks).flatMap(({ open, close }) => [...open, ...close]);
    return piece && all.some((mark) => mark.trim() === piece) ? piece : "";
  }

  /** Send the message, and have it answered. */
  say() {
    const text = this.message.value.trim();
    if (!text && !this.pictures.chosen.length) return;
    this.message.value = "";
    this.fit();
    this.pane.say(text, this.pictures.taken());
    return this.answer();
  }

  /** Have the last message answered. */
  async answer() {
    const system = this.system.value.trim();
    const messages = [...(system ? [{ role: "system", content: system }] : []), ...this.pane.messages];
    this.status.replaceChildren();
    let tokens = 0;
    /** @type {ReturnType<ChatPane["answer"]> | null} */
    let answer = null;
    await this.run.start("chat", {
      argument: () => ({ messages, options: this.settings.read(), marks: this.marks }),
      begin: () => (answer = this.pane.answer()),
      report: (reports) => {
        tokens += reports.filter((each) => "id" in each).length;
        const isThinking = reports.some((each) => each.isThinking);
        answer?.add(reports.map((each) => each.text || this.markOf(each)).join(""), isThinking);
      },
      end: (ending) => answer?.end(ending, tokens, this.contextLength),
      fail: (problem) => {
        answer?.end(null, tokens, this.contextLength);
        this.status.replaceChildren(problem);
      },
    });
    if (matchMedia("(pointer: fine)").matches) this.message.focus(); // on a phone that would open the keyboard over the answer
  }
}
