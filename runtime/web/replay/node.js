/**
 * Node's part of `onnx-textgen verify --runtime node`: a job as JSON on stdin, `{ found }` or `{ error }` as JSON on stdout.
 *
 * onnxruntime-node is looked for where Node looks from the current folder.
 */

import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { continueGreedily } from "./continue.js";

const require = createRequire(join(process.cwd(), "package.json"));

async function main() {
  const { folder, ...job } = JSON.parse(await text(process.stdin));
  const ort = require("onnxruntime-node");
  const fetchFile = async (/** @type {string} */ name) => new Response(await readFile(join(folder, name)));
  const found = await continueGreedily(ort, fetchFile, job, {}, join(folder, job.graph));
  return { found };
}

main().then(
  (answer) => console.log(JSON.stringify(answer)),
  (error) => console.log(JSON.stringify({ error: String(error.message ?? error) })),
);
