/** The fields for device and threads in the settings, and what they stand for in this browser. */

import { nameOfDevice } from "./devices.js";
import { get, make } from "./view.js";

/** @import { Capabilities } from "./devices.js" */
/** @import { Device } from "./site_file.js" */

/** @typedef {{ device: Device, threads: number, name: string }} Choice */

export class DeviceChoice {
  /**
   * @param {Capabilities} capabilities
   * @param {() => void} onChange
   */
  constructor(capabilities, onChange) {
    this.capabilities = capabilities;
    this.device = get("device", HTMLSelectElement);
    this.threads = get("threads", HTMLSelectElement);
    /** WebGPU that failed with this model is not chosen again by itself. */
    this.gpuFailed = false;
    this.device.append(
      make("option", { value: "auto" }, "The fastest here"),
      make("option", { value: "webgpu", disabled: !capabilities.webgpu }, capabilities.webgpu ? nameOfDevice("webgpu", 1, capabilities.gpu) : "WebGPU (not in this browser)"),
      make("option", { value: "wasm" }, "WebAssembly"),
    );
    const numbers = Array.from({ length: capabilities.threads }, (_, place) => String(place + 1));
    this.threads.append(...numbers.map((number) => make("option", { value: number }, number)));
    this.threads.value = String(capabilities.threads);
    this.threads.disabled = capabilities.threads === 1;
    get("threads-hint", HTMLElement).textContent = globalThis.crossOriginIsolated
      ? "For WebAssembly."
      : "More than one needs two headers of the server (COOP and COEP), which it does not send.";
    for (const select of [this.device, this.threads]) select.addEventListener("change", onChange);
  }

  /**
   * What the fields choose.
   * @param {string} precision of the model: one with float16 weights needs a GPU that computes in float16
   * @returns {Choice}
   */
  read(precision) {
    const { webgpu, isRealGpu, halves, gpu } = this.capabilities;
    const isFast = webgpu && isRealGpu && !this.gpuFailed && (precision !== "fp16" || halves);
    const device = this.device.value === "auto" ? (isFast ? "webgpu" : "wasm") : /** @type {Device} */ (this.device.value);
    const threads = device === "wasm" ? Number(this.threads.value) : 1;
    return { device, threads, name: nameOfDevice(device, threads, gpu) };
  }
}
