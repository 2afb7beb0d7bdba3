/**
 * What this browser can run models on: WebGPU, and WebAssembly with or without threads.
 *
 * @typedef {object} Capabilities
 * @property {boolean} simd whether WebAssembly has the instructions that ONNX Runtime needs
 * @property {number} threads most threads for WebAssembly; 1 if the page may not share memory
 * @property {boolean} webgpu whether there is an adapter of WebGPU
 * @property {boolean} isRealGpu whether that adapter is a GPU, and not a program that acts as one
 * @property {boolean} halves whether the adapter computes in float16
 * @property {string} gpu the adapter's name, as far as the browser tells it
 */

/** A module with one instruction of 128-bit SIMD: `v128.any_true` of a constant. */
const SIMD = [
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 127, 3, 2, 1, 0, 10, 24, 1, 22, 0, 253, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
  0, 0, 0, 253, 83, 11,
];
const MOST_THREADS = 8;

/**
 * Find out what this browser can do.
 * @returns {Promise<Capabilities>}
 */
export async function findCapabilities() {
  const simd = typeof WebAssembly === "object" && WebAssembly.validate(new Uint8Array(SIMD));
  const threads = globalThis.crossOriginIsolated ? Math.min(navigator.hardwareConcurrency || 1, MOST_THREADS) : 1;
  /** @type {any} the types of WebGPU are not among TypeScript's own */
  const gpu = /** @type {any} */ (navigator).gpu;
  const adapter = await gpu?.requestAdapter({ powerPreference: "high-performance" }).catch(() => null);
  const info = adapter?.info ?? {};
  return {
    simd,
    threads,
    webgpu: Boolean(adapter),
    isRealGpu: Boolean(adapter) && !info.isFallbackAdapter && !adapter.isFallbackAdapter,
    halves: Boolean(adapter?.features.has("shader-f16")),
    gpu: [info.vendor, info.architecture].filter(Boolean).join(" "),
  };
}

/**
 * The name of a device for readers: `WebAssembly, 4 threads`.
 * @param {"wasm" | "webgpu"} device
 * @param {number} threads
 * @param {string} gpu
 */
export function nameOfDevice(device, threads, gpu) {
  if (device === "webgpu") return gpu ? `WebGPU (${gpu})` : "WebGPU";
  return `WebAssembly, ${threads} ${threads === 1 ? "thread" : "threads"}`;
}
