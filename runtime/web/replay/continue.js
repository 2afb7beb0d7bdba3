/**
 * Continues token ids greedily, for `onnx-textgen verify --runtime`: by the largest logit alone, without a tokenizer.
 */

import { Decoder } from "../textgen/inference/decoder.js";
import { sessionOptions, weightsOf } from "../textgen/package/graphs.js";
import { Package } from "../textgen/package/package.js";
import { argmax } from "../textgen/sampling/numbers.js";

/** @import { InferenceSession } from "onnxruntime-common" */
/** @import { Libraries } from "../textgen/libraries.js" */
/** @import { FetchFile } from "../textgen/package/package.js" */

/** @typedef {{ prompt_ids: number[], new_tokens: number }} Task a prompt, and the most tokens to write after it */
/** @typedef {{ graph: string, tasks: Task[] }} Job what the command asks for; `graph` is a file of the package */

/**
 * Open a package and continue each prompt; an id that ends a text is not part of the result.
 *
 * `path` of the graph is for onnxruntime-node, which finds the weights itself.
 * @param {Libraries["ort"]} ort
 * @param {FetchFile} fetchFile
 * @param {Job} job
 * @param {InferenceSession.SessionOptions} options
 * @param {string} [path]
 * @returns {Promise<number[][]>}
 */
export async function continueGreedily(ort, fetchFile, { graph, tasks }, options, path) {
  const files = await Package.open(fetchFile);
  const { manifest } = files;
  const model = await files.bytes(graph);
  const externalData = [];
  if (path === undefined) {
    for (const [location, name] of Object.entries(weightsOf(manifest, graph))) {
      externalData.push({ path: location, data: await files.bytes(name) });
    }
  }
  const all = { ...sessionOptions(graph), ...options, ...(externalData.length ? { externalData } : {}) };
  const decoder = await Decoder.open(ort, model, manifest.geometry, all, path);
  const found = [];
  for (const task of tasks) found.push(await continuation(decoder, task, manifest.eos_ids));
  await decoder.close();
  return found;
}

/**
 * @param {Decoder} decoder
 * @param {Task} task
 * @param {readonly number[]} eosIds
 */
async function continuation(decoder, { prompt_ids: promptIds, new_tokens: newTokens }, eosIds) {
  const found = [];
  let logits = null;
  for await (logits of decoder.prefill(promptIds));
  while (logits !== null && found.length < newTokens) {
    const chosen = argmax(logits);
    if (eosIds.includes(chosen)) break;
    found.push(chosen);
    logits = found.length < newTokens ? await decoder.feed([chosen]) : null;
  }
  return found;
}
