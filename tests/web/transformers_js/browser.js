/** What transformers.js writes in a browser: the job from `/job`, the library from the folder that is served as `modules`. */

import { env, pipeline } from "/modules/@huggingface/transformers/dist/transformers.min.js";

export async function write() {
  const { pipeline: name, folder, options, tasks } = await (await fetch("/job")).json();
  Object.assign(env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: "/", useBrowserCache: false });
  env.backends.onnx.wasm.wasmPaths = "/modules/onnxruntime-web/dist/";
  const generator = await pipeline(name, folder, options);
  const texts = [];
  for (const { prompt, tokens } of tasks) {
    const [{ generated_text: text }] = await generator(prompt, { max_new_tokens: tokens, do_sample: false });
    texts.push(text);
  }
  const { dtype, device } = generator.model.sessions.model.config;
  const fetched = performance.getEntriesByType("resource").map(({ name }) => name.split("/package/")[1]).filter(Boolean);
  return { texts, dtype, device, fetched };
}
