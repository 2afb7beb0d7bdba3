/** The job from `/job`, the answer as a message; transformers.js is the one of the folder that is served as `modules`. */

import { continueGreedily } from "./transformers_continue.mjs";

async function main() {
  const job = await (await fetch("/job")).json();
  const library = await import("/modules/@huggingface/transformers/dist/transformers.min.js");
  const { env } = library;
  Object.assign(env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: "/", useBrowserCache: false });
  env.backends.onnx.wasm.wasmPaths = "/modules/onnxruntime-web/dist/";
  return { found: await continueGreedily(library, "package", "wasm", job) };
}

main().then(
  (answer) => self.postMessage(answer),
  (error) => self.postMessage({ error: String(error.message ?? error) }),
);
