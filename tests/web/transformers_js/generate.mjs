// What transformers.js writes after prompts: node generate.mjs JOB, which has {pipeline, folder, options, tasks: [{prompt, tokens}]}.
import { env, pipeline } from "@huggingface/transformers";

const { pipeline: name, folder, options, tasks } = JSON.parse(process.argv[2]);
env.allowRemoteModels = false;
env.localModelPath = "/";
const generator = await pipeline(name, folder, options);
const texts = [];
for (const { prompt, tokens } of tasks) {
  const [{ generated_text: text }] = await generator(prompt, { max_new_tokens: tokens, do_sample: false });
  texts.push(typeof text === "string" ? text : text.at(-1).content);
}
const { model, decoder_model_merged: merged } = generator.model.sessions;
const { dtype, device } = (model ?? merged).config;
console.log(JSON.stringify({ texts, dtype, device }));
