/**
 * The browser's part of `onnx-textgen verify --runtime browser`, in a worker: the job from `/job`, `{ found }` or `{ error }` as a message.
 */

import { continueGreedily } from "./continue.js";

async function main() {
  const { library, binary, device, threads, ...job } = await (await fetch("/job")).json();
  const ort = await import(library);
  ort.env.wasm.wasmPaths = { wasm: binary };
  ort.env.wasm.numThreads = threads;
  const fetchFile = (/** @type {string} */ name) => fetch(`/package/${name}`);
  return { found: await continueGreedily(ort, fetchFile, job, { executionProviders: [device] }) };
}

main().then(
  (answer) => self.postMessage(answer),
  (error) => self.postMessage({ error: String(error.message ?? error) }),
);
