/**
 * The page's side of the worker that runs the model: calls, and what the worker reports while it works on them.
 *
 * @typedef {object} Alternative A token that the model could have chosen.
 * @property {number} id
 * @property {string} piece its text
 * @property {number} probability
 *
 * @typedef {object} Token A token of a text.
 * @property {number} id
 * @property {string} piece its text by itself
 * @property {string} text what it adds to the text; empty in the middle of a character
 * @property {number} probability before temperature and truncation
 * @property {Alternative[]} alternatives the most likely tokens at its place, likeliest first
 *
 * @typedef {object} Ending How a text ended.
 * @property {string} reason `eos`, `length`, `stop`, `context`, `cancelled` ...
 * @property {string} seed
 * @property {number} promptTokens
 * @property {number} firstTokenSeconds
 * @property {number} tokensPerSecond NaN for a text of one token
 *
 * @typedef {object} Opened What is open.
 * @property {Record<string, any>} manifest
 * @property {boolean} hasTemplate
 * @property {number} checkedFiles files whose sha256 was compared
 *
 * @typedef {object} Replayed One golden run in this browser.
 * @property {number} promptTokens
 * @property {number} tokens
 * @property {number} same tokens that are the most likely ones here too
 * @property {boolean} isRight whether all are the same, or as close to it as the package's rounding allows
 * @property {number} largestGap of a logit of the run to the largest logit, relative to that
 * @property {string} prompt
 * @property {string} text
 *
 * @typedef {{ text: string, ids: number[] }} Prompt a text, and token ids that continue it
 * @typedef {import("../textgen/images/pictures.js").Pixels} Pixels
 * @typedef {{ type: "text", text: string } | { type: "image", image: Pixels }} Part
 * @typedef {{ role: "system" | "user" | "assistant", content: string | Part[] }} Message
 * @typedef {Record<string, number | string | undefined>} Options
 */

/** The worker said that something failed; the message is one line for the reader of the page. */
export class WorkerError extends Error {}

export class ModelWorker {
  constructor() {
    this.worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
    /** @type {Map<number, (message: any) => void>} */
    this.calls = new Map();
    this.count = 0;
    this.worker.onmessage = ({ data }) => this.calls.get(data.call)?.(data);
    this.worker.onerror = (event) => {
      event.preventDefault();
      const error = event.message || "the worker that runs the model could not be started; reload the page";
      for (const receive of this.calls.values()) receive({ error });
    };
  }

  /**
   * Call a method of the worker; yields what it reports, and returns its result. Raises `WorkerError`.
   * @param {string} method
   * @param {unknown} argument
   * @param {AbortSignal} [signal] stops the call; it then ends early, with a result
   * @returns {AsyncGenerator<any, any, void>}
   */
  async *call(method, argument, signal) {
    const call = ++this.count;
    /** @type {any[]} */
    const received = [];
    let wake = () => {};
    this.calls.set(call, (message) => {
      received.push(message);
      wake();
    });
    const stop = () => this.worker.postMessage({ stop: call });
    signal?.addEventListener("abort", stop);
    this.worker.postMessage({ call, method, argument });
    try {
      for (;;) {
        while (!received.length) await new Promise((resolve) => (wake = () => resolve(undefined)));
        for (const message of received.splice(0)) {
          if ("error" in message) throw new WorkerError(message.error);
          if ("result" in message) return message.result;
          yield message.report;
        }
      }
    } finally {
      signal?.removeEventListener("abort", stop);
      this.calls.delete(call);
    }
  }

  /** End the worker, and free the memory of its model. */
  close() {
    this.worker.terminate();
    for (const receive of this.calls.values()) receive({ error: "the model was closed" });
  }
}
