/**
 * Registers the service worker. On hosts that cannot send the headers for threads, the page is loaded once more, now from the service
 * worker, which adds them.
 */

const RELOADED = "onnx-textgen reloaded";
const LONGEST_WAIT = 10_000;
/** Milliseconds for the service worker to install itself; the page works without it, by one thread and not offline. */

/**
 * Make the page work offline and with threads, as far as the browser can. May reload the page; it returns only if it does not.
 */
export async function prepareForOffline() {
  if (!("serviceWorker" in navigator)) return;
  try {
    const registration = await navigator.serviceWorker.register("service_worker.js");
    if (registration.waiting) {
      const taken = next(navigator.serviceWorker, "controllerchange");
      registration.waiting.postMessage("take over");
      await taken;
      await reload();
    }
    await soon(navigator.serviceWorker.ready);
    if (!navigator.serviceWorker.controller) await next(navigator.serviceWorker, "controllerchange");
    if (globalThis.crossOriginIsolated) sessionStorage.removeItem(RELOADED);
    else if (!sessionStorage.getItem(RELOADED)) {
      sessionStorage.setItem(RELOADED, "once"); // never twice, if the headers are of no use here
      await reload();
    }
  } catch {
    // The browser keeps nothing (private windows of some do not), or the file is missing: the page works without it.
  }
}

/** Load the page again; the promise stays open until it is gone. */
async function reload() {
  location.reload();
  await new Promise(() => {});
}

/**
 * The next event of a name.
 * @param {EventTarget} target
 * @param {string} name
 */
const next = (target, name) => soon(new Promise((resolve) => target.addEventListener(name, resolve, { once: true })));

/**
 * The value of a promise; rejects if it takes too long.
 * @template Value
 * @param {Promise<Value>} promise
 * @returns {Promise<Value>}
 */
const soon = (promise) =>
  Promise.race([promise, new Promise((_, reject) => setTimeout(() => reject(new Error("it takes too long")), LONGEST_WAIT))]);
