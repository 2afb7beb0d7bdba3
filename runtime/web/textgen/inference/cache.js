/**
 * The tensors that a graph carries from run to run: keys and values, which grow with each run, and states of fixed size.
 *
 * A run never writes into its past, so a text can return to any tensors that were kept.
 */

import { PackageError } from "../errors.js";

/** @import { InferenceSession, Tensor } from "onnxruntime-common" */
/** @import { Libraries } from "../libraries.js" */
/** @typedef {Record<string, Tensor>} Tensors by the name of the past input */

/**
 * @typedef {object} Carried
 * @property {string} past name of the input
 * @property {string} present name of the output that becomes it
 * @property {"float32" | "float16" | "int8" | "float64"} type
 * @property {number[]} empty the shape before the first token
 */

const ARRAYS = {
  float32: Float32Array,
  float16: /** @type {{ Float16Array?: Uint16ArrayConstructor }} */ (globalThis).Float16Array ?? Uint16Array,
  int8: Int8Array,
  float64: Float64Array,
};

/** Inputs that the decoder gives besides the cache. */
export const ROLES = ["input_ids", "inputs_embeds", "attention_mask", "position_ids", "logits_positions"];

/**
 * The carried tensors of a graph; raises `PackageError` for a graph whose inputs this library cannot give.
 * @param {InferenceSession} session
 * @returns {Carried[]}
 */
export function carriedTensors(session) {
  const outputs = new Set(session.outputNames);
  const found = [];
  for (const input of session.inputMetadata) {
    if (ROLES.includes(input.name)) continue;
    const rest = input.name.replace(/^past(_key_values)?/, "");
    const present = [`present${rest}`, `present_key_values${rest}`].find((name) => outputs.has(name));
    if (!input.name.startsWith("past") || present === undefined || !input.isTensor || !(input.type in ARRAYS)) {
      throw new PackageError(`the graph needs the input ${input.name}, which this library cannot give; open the package in Python`);
    }
    const open = input.shape.filter((size, axis) => axis > 0 && typeof size !== "number");
    if (open.length > 1) {
      throw new PackageError(`the graph leaves sizes of ${input.name} open; open the package in Python, or export the model again`);
    }
    // The batch is one text; the other open size is the number of tokens so far.
    const empty = input.shape.map((size, axis) => (typeof size === "number" ? size : axis === 0 ? 1 : 0));
    found.push({ past: input.name, present, type: /** @type {Carried["type"]} */ (input.type), empty });
  }
  return found;
}

/**
 * The tensors before the first token: no keys, states of zeros.
 * @param {Libraries["ort"]} ort
 * @param {readonly Carried[]} carried
 * @returns {Tensors}
 */
export function emptyTensors(ort, carried) {
  return Object.fromEntries(
    carried.map(({ past, type, empty }) => {
      const data = new ARRAYS[type](empty.reduce((one, other) => one * other, 1));
      return [past, new ort.Tensor(type, /** @type {any} */ (data), empty)];
    }),
  );
}

/**
 * The past of the next run, from the results of the last one.
 * @param {readonly Carried[]} carried
 * @param {Tensors} results
 * @returns {Tensors}
 */
export function nextTensors(carried, results) {
  return Object.fromEntries(carried.map(({ past, present }) => [past, results[present]]));
}

/** Free what lies on a device; tensors on the CPU are freed with their arrays. @param {Tensors | null} tensors */
export function dispose(tensors) {
  for (const tensor of Object.values(tensors ?? {})) if (tensor.location !== "cpu") tensor.dispose();
}
