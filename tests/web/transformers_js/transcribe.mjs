// What transformers.js writes of sounds: node transcribe.mjs JOB, a file with {folder, tasks: [{samples, options}]}, samples in base64.
import { readFileSync } from "node:fs";
import { env, pipeline } from "@huggingface/transformers";

const { folder, tasks } = JSON.parse(readFileSync(process.argv[2], "utf-8"));
env.allowRemoteModels = false;
env.localModelPath = "/";
const transcriber = await pipeline("automatic-speech-recognition", folder);
const found = [];
for (const { samples, options } of tasks) {
  const bytes = Uint8Array.from(Buffer.from(samples, "base64"));
  found.push(await transcriber(new Float32Array(bytes.buffer), options));
}
console.log(JSON.stringify(found));
