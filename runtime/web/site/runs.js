/** One thing at a time: a text, an answer or a replay. Reports of the worker reach the page once per frame. */

/** @import { ModelWorker } from "./model_worker.js" */

/**
 * @typedef {object} Task
 * @property {boolean} [givesWay] whether it is stopped when the reader starts something else
 * @property {() => unknown} [argument] for the worker; an error that it raises is shown
 * @property {() => void} begin
 * @property {(reports: any[]) => void} report
 * @property {(result: any) => void} end
 * @property {(problem: string) => void} fail
 */

export class Run {
  /** @param {(isReady: boolean, isRunning: boolean) => void} onState */
  constructor(onState) {
    this.onState = onState;
    /** @type {ModelWorker | null} */
    this.worker = null;
    /** @type {AbortController | null} */
    this.controller = null;
    this.givesWay = false;
    /** Settled when nothing runs. */
    this.ended = Promise.resolve();
  }

  /** Whether something can be started. */
  get isReady() {
    return this.worker !== null && (this.controller === null || this.givesWay);
  }

  /** The worker with an open model; null while there is none. @param {ModelWorker | null} worker */
  setWorker(worker) {
    this.worker = worker;
    this.onState(this.isReady, false);
  }

  /** End what is running; it then has its result. */
  stop() {
    this.controller?.abort();
  }

  /**
   * @param {string} method
   * @param {Task} task
   */
  async start(method, task) {
    if (this.controller && !this.givesWay) return;
    if (this.givesWay) {
      this.givesWay = false; // to one task only
      this.stop();
      this.onState(false, true);
    }
    const before = this.ended;
    this.ended = before.then(() => this.work(method, task));
    return this.ended;
  }

  /**
   * @param {string} method
   * @param {Task} task
   */
  async work(method, { argument = () => undefined, givesWay = false, begin, report, end, fail }) {
    const { worker } = this;
    if (!worker || this.controller) return;
    const controller = new AbortController();
    this.controller = controller;
    this.givesWay = givesWay;
    this.onState(this.isReady, !givesWay);
    /** @type {any[]} */
    let waiting = [];
    const flush = () => {
      const reports = waiting;
      waiting = [];
      if (reports.length) report(reports);
    };
    try {
      const value = argument();
      begin();
      const calls = worker.call(method, value, controller.signal);
      for (;;) {
        const next = await calls.next();
        if (next.done) {
          flush();
          end(next.value);
          break;
        }
        if (waiting.push(next.value) === 1) inNextFrame(flush);
      }
    } catch (error) {
      flush();
      fail(error instanceof Error ? error.message : String(error));
    } finally {
      this.controller = null;
      this.givesWay = false;
      this.onState(this.isReady, false);
    }
  }
}

/** Call a function at the next frame; a page that is not in sight has no frames. @param {() => void} work */
function inNextFrame(work) {
  if (document.hidden) setTimeout(work, 100);
  else requestAnimationFrame(work);
}
