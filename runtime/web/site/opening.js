/** Opens the model: asks before a large download, shows its progress, and says what went wrong. */

import { ModelWorker } from "./model_worker.js";
import { resourcesOf } from "./site_file.js";
import { Store } from "./store.js";
import { get, size } from "./view.js";

/** @import { Choice } from "./device_choice.js" */
/** @import { Opened } from "./model_worker.js" */
/** @import { Site } from "./site_file.js" */

/** Bytes that are fetched without asking. */
const SMALL = 50e6;

const card = get("loading", HTMLElement);
const stage = get("stage", HTMLElement);
const bar = get("progress", HTMLProgressElement);
const button = get("download", HTMLButtonElement);
const problem = get("load-problem", HTMLElement);

/** The address of the site. */
export const address = new URL(".", document.baseURI).href;

/** Show a problem instead of the progress. @param {string} text */
export function showProblem(text) {
  card.hidden = false;
  stage.hidden = bar.hidden = button.hidden = true;
  problem.hidden = false;
  problem.textContent = text;
}

/**
 * Bytes that the browser has to fetch for a choice.
 * @param {Site} site
 * @param {Choice} choice
 */
async function bytesToFetch(site, { device }) {
  const store = new Store(address);
  const missing = await Promise.all(resourcesOf(site, device).map(async (each) => ((await store.has(each)) ? 0 : each.size)));
  return missing.reduce((sum, bytes) => sum + bytes, 0);
}

/**
 * Wait for the reader's consent if there is much to fetch.
 * @param {Site} site
 * @param {Choice} choice
 */
export async function askBeforeDownload(site, choice) {
  const bytes = await bytesToFetch(site, choice);
  if (bytes <= SMALL) return;
  stage.textContent = "The model runs in this browser. It is fetched once, and kept for later visits.";
  button.textContent = `Fetch the model (${size(bytes)})`;
  button.hidden = false;
  await new Promise((resolve) => button.addEventListener("click", resolve, { once: true }));
  button.hidden = true;
}

/**
 * Start a worker and open the model in it. Raises `WorkerError`; the worker is closed then.
 * @param {Site} site
 * @param {Choice} choice
 * @returns {Promise<{ worker: ModelWorker, opened: Opened }>}
 */
export async function openModel(site, choice) {
  card.hidden = stage.hidden = bar.hidden = false;
  problem.hidden = true;
  stage.textContent = "Starting ...";
  bar.removeAttribute("value");
  const worker = new ModelWorker();
  try {
    const calls = worker.call("open", { site, address, device: choice.device, threads: choice.threads });
    for (;;) {
      const { done, value } = await calls.next();
      if (done) {
        card.hidden = true;
        return { worker, opened: value };
      }
      showStage(value);
    }
  } catch (error) {
    worker.close();
    throw error;
  }
}

/** @param {{ stage: "fetching" | "reading" | "opening", loaded: number, total: number }} progress */
function showStage({ stage: name, loaded, total }) {
  bar.value = loaded / total;
  if (name === "opening") stage.textContent = "Opening the model ...";
  else stage.textContent = `${name === "fetching" ? "Fetching" : "Reading"} the model: ${size(loaded)} of ${size(total)}`;
}
