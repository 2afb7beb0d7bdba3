/** The job from stdin, the answer to stdout; transformers.js is the one of the current folder. */

import { createRequire } from "node:module";
import { text } from "node:stream/consumers";
import { continueGreedily } from "./transformers_continue.mjs";

const job = JSON.parse(await text(process.stdin));
const library = createRequire(`${process.cwd()}/-`)("@huggingface/transformers");
library.env.allowRemoteModels = false;
continueGreedily(library, job.folder, "cpu", job).then(
  (found) => console.log(JSON.stringify({ found })),
  (error) => console.log(JSON.stringify({ error: String(error.message ?? error) })),
);
