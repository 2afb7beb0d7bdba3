/** The graphs of a package, and where each finds its weights. */

/** @import { InferenceSession } from "onnxruntime-common" */
/** @import { Manifest } from "./manifest.js" */

export const GRAPH = "model.onnx";
/** The same numbers with the weights unpacked once, when the graph is opened: WebAssembly has no fast kernel for packed ones. */
export const WASM_GRAPH = "onnx/model_wasm.onnx";
/** Weights of format version 1, and of later ones; large packages have several files. */
const WEIGHTS = /^(model\.onnx\.data|onnx\/(model|decoder_model_merged)\w*\.onnx_data(_[1-9]\d?)?)$/;
/** The graph that reads pictures, whose weights are called after it, and the decoder that takes its rows. */
export const VISION_GRAPH = "onnx/vision_encoder.onnx";
const VISION_WEIGHTS = /^onnx\/vision_encoder\.onnx_data(_[1-9]\d?)?$/;
const MERGED = /^onnx\/decoder_model_merged\w*\.onnx$/;

/**
 * The files of weights, by the location that a graph gives for each: relative to its own folder.
 * @param {Manifest} manifest
 * @param {string} graph
 * @returns {Record<string, string>}
 */
export function weightsOf(manifest, graph) {
  const folder = graph.slice(0, graph.lastIndexOf("/") + 1);
  const pattern = graph === VISION_GRAPH ? VISION_WEIGHTS : WEIGHTS;
  const names = Object.keys(manifest.files).filter((name) => pattern.test(name));
  return Object.fromEntries(names.map((name) => [name.startsWith(folder) ? name.slice(folder.length) : name, name]));
}

/**
 * The graph of the decoder: in a package that reads pictures, the one that takes their rows.
 * @param {Manifest} manifest
 * @returns {string}
 */
export function decoderGraph(manifest) {
  return (VISION_GRAPH in manifest.files && Object.keys(manifest.files).find((name) => MERGED.test(name))) || GRAPH;
}

/**
 * What onnxruntime has to be told for a graph: to unpack the weights of the one for WebAssembly.
 * @param {string} graph
 * @returns {InferenceSession.SessionOptions}
 */
export function sessionOptions(graph) {
  return graph === WASM_GRAPH ? { extra: { session: { disable_quant_qdq: "1" } } } : {};
}
