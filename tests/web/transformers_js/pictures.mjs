// What transformers.js answers to prompts with pictures: node pictures.mjs FILE, a job for `answers`.
import { readFileSync } from "node:fs";
import * as library from "@huggingface/transformers";
import { answers } from "./pictures.js";

Object.assign(library.env, { allowRemoteModels: false, localModelPath: "/" });
console.log(JSON.stringify(await answers(library, JSON.parse(readFileSync(process.argv[2], "utf-8")))));
