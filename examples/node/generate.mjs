// The likeliest continuation of a prompt, in Node, without Python: the whole loop over a package's graph.
//
//   npm install --ignore-scripts       (the install script of onnxruntime-node would fetch CUDA)
//   node generate.mjs DIR "Once upon a time" [TOKENS]
//
// `runtime/web/textgen` has sampling, stop strings, chats and checks of the files; this has the rest in one page.
import { readFileSync } from "node:fs";
import { Tokenizer } from "@huggingface/tokenizers";
import ort from "onnxruntime-node";

const [folder, prompt, tokens = "32"] = process.argv.slice(2);
const read = (name) => JSON.parse(readFileSync(`${folder}/${name}`, "utf8"));
const { eos_ids: eosIds, geometry } = read("manifest.json");
const tokenizer = new Tokenizer(read("tokenizer.json"), {});
const session = await ort.InferenceSession.create(`${folder}/model.onnx`, { logSeverityLevel: 3 });
const int64 = (numbers) => new ort.Tensor("int64", BigInt64Array.from(numbers, BigInt), [1, numbers.length]);

// The cache, in float32: keys and values [1, heads, tokens so far, head size]. A past is the present of the run before.
const pasts = session.inputMetadata.filter(({ name }) => name.startsWith("past_key_values."));
let cache = Object.fromEntries(pasts.map(({ name, type, shape }) => [name, new ort.Tensor(type, [], [1, shape[1], 0, shape[3]])]));

const ids = tokenizer.encode(prompt).ids; // of prompt and text
const end = Math.min(ids.length + Number(tokens), geometry.context_length);
for (let fed = 0; ids.length < end;) {
  const inputs = { input_ids: int64(ids.slice(fed)), attention_mask: int64(ids.map(() => 1)) };
  fed = ids.length;
  const results = await session.run({ ...cache, ...inputs });
  cache = Object.fromEntries(pasts.map(({ name }) => [name, results[name.replace("past_key_values", "present")]]));
  const logits = results.logits.data; // [1, 1, vocabulary]: those after the last token
  const best = logits.reduce((one, logit, id) => (logit > logits[one] ? id : one), 0);
  if (eosIds.includes(best)) break;
  ids.push(best);
}
console.log(tokenizer.decode(ids, { skip_special_tokens: true, clean_up_tokenization_spaces: false }));
