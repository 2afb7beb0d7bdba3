/** Says in one line for the reader of the page what failed, why, and what helps. */

/** Words by which browsers and ONNX Runtime tell that memory is used up. */
const OUT_OF_MEMORY = /bad_alloc|out of memory|OOM|allocation failed|Failed to allocate|memory access out of bounds|Invalid typed array length|could not allocate/i;
const DEVICE_LOST = /device (was |is )?lost|GPUDevice.*lost/i;

/**
 * @param {unknown} error
 * @returns {string}
 */
export function explain(error) {
  const text = error instanceof Error ? allMessages(error) : String(error);
  if (OUT_OF_MEMORY.test(text) || error instanceof RangeError) {
    return "there is not enough memory for this model in this browser; close other tabs, or open the page on a machine with more memory";
  }
  if (DEVICE_LOST.test(text)) return "the GPU was lost, which happens if its memory is used up; choose WebAssembly in the settings";
  return (error instanceof Error && error.message ? error.message : text).split("\n", 1)[0]?.slice(0, 400) || "something failed; reload the page";
}

/** The messages of an error and of its causes. @param {unknown} error @returns {string} */
const allMessages = (error) => (error instanceof Error ? `${error.message} ${allMessages(error.cause ?? "")}` : String(error));
