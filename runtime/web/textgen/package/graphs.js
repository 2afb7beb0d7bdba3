/** The graphs of a package, and where each finds its weights. */

/** @import { InferenceSession } from "onnxruntime-common" */
/** @import { Manifest } from "./manifest.js" */

export const GRAPH = "model.onnx";
/** The same numbers with the weights unpacked once, when the graph is opened: WebAssembly has no fast kernel for packed ones. */
export const WASM_GRAPH = "onnx/model_wasm.onnx";
/** Weights of format version 1, and of later ones; large packages have several files. */
const WEIGHTS = /^(model\.onnx\.data|onnx\/model\w*\.onnx_data(_[1-9]\d?)?)$/;

/**
 * The files of weights, by the location that a graph gives for each: relative to its own folder.
 * @param {Manifest} manifest
 * @param {string} graph
 * @returns {Record<string, string>}
 */
export function weightsOf(manifest, graph) {
  const folder = graph.slice(0, graph.lastIndexOf("/") + 1);
  const names = Object.keys(manifest.files).filter((name) => WEIGHTS.test(name));
  return Object.fromEntries(names.map((name) => [name.startsWith(folder) ? name.slice(folder.length) : name, name]));
}

/**
 * What onnxruntime has to be told for a graph: to unpack the weights of the one for WebAssembly.
 * @param {string} graph
 * @returns {InferenceSession.SessionOptions}
 */
export function sessionOptions(graph) {
  return graph === WASM_GRAPH ? { extra: { session: { disable_quant_qdq: "1" } } } : {};
}
