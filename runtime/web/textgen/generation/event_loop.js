/**
 * Lets the event loop run: WebAssembly computes without a pause, so that a click, or a message to a worker, would wait for the end.
 *
 * A message port, since timers of browsers wait at least four milliseconds.
 * @returns {Promise<void>}
 */
export function nextTurn() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}
