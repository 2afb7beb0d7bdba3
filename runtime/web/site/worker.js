/**
 * The worker that runs the model, so that the page stays responsive. `model_worker.js` is the page's side of it.
 *
 * A message `{call, method, argument}` begins a call, `{stop: call}` ends it early. Answers are `{call, report}`, any number of them,
 * and at last `{call, result}` or `{call, error}`.
 */

import { nextTurn } from "../textgen/generation/event_loop.js";
import { exactRun, replay as replayOne } from "../textgen/golden.js";
import { sessionOptions } from "../textgen/package/graphs.js";
import * as textgen from "../textgen/index.js";
import { readManifest } from "../textgen/package/manifest.js";
import { importModule } from "./libraries.js";
import { explain } from "./problems.js";
import { filesOf, resourcesOf } from "./site_file.js";
import { Store } from "./store.js";

/** @import { Device, Marks, Resource, Site } from "./site_file.js" */
/** @import { Ending, Message, Opened, Options, Prompt, Replayed, Token } from "./model_worker.js" */
/** @import { Model } from "../textgen/index.js" */
/** @import { Chunk } from "../textgen/generation/continuation.js" */

/** Alternatives that are reported for each token. */
const ALTERNATIVES = 10;

/** @type {Model | null} */
let model = null;

/** @typedef {{ report: (value: unknown) => void, signal: AbortSignal }} Call */

/**
 * Fetch what the device needs, and open the model.
 * @param {{ site: Site, address: string, device: Device, threads: number }} argument `address` of the site
 * @param {Call} call reports `{stage, loaded, total}`
 * @returns {Promise<Opened>}
 */
async function open({ site, address, device, threads }, { report }) {
  const store = new Store(address);
  const resources = resourcesOf(site, device);
  const total = resources.reduce((sum, each) => sum + each.size, 0);
  let loaded = 0;
  /** @param {Record<string, import("./site_file.js").Resource>} from @param {string} name */
  const read = async (from, name) => {
    const resource = /** @type {import("./site_file.js").Resource} */ (from[name]);
    const stage = (await store.has(resource)) ? "reading" : "fetching";
    return store.read(resource, (bytes) => report({ stage, loaded: (loaded += bytes), total }));
  };
  const tokenizers = await importModule(await read(site.libraries, "tokenizers"));
  const jinja = await importModule(await read(site.libraries, "jinja"));
  await read(site.libraries, "marked"); // for the page
  const ort = await importModule(await read(site.libraries, `onnxruntime-${device}`));
  ort.env.wasm.wasmBinary = (await read(site.libraries, `onnxruntime-${device}-binary`)).buffer;
  ort.env.wasm.numThreads = threads;

  const text = async (/** @type {string} */ name) => (name in site.files ? new TextDecoder().decode(await read(site.files, name)) : null);
  const manifest = await readManifest(/** @type {string} */ (await text("manifest.json")));
  const spec = await text("tokenizer.json");
  const chatTemplate = await text("chat_template.jinja");
  const { graph, data } = site.graphs[device];
  const bytes = await read(site.files, graph);
  const externalData = [];
  for (const [path, name] of Object.entries(data)) externalData.push({ path, data: await read(site.files, name) });
  report({ stage: "opening", loaded: total, total });
  const options = { executionProviders: [device], externalData, ...sessionOptions(graph) };
  const decoder = await textgen.Decoder.open(ort, bytes, manifest.geometry, options);
  const { vision } = site;
  if (vision) {
    for (const name of [vision.graph, ...Object.values(vision.data)]) await read(site.files, name); // now, so that it works offline
    decoder.pictures = new textgen.Pictures(ort, async () => {
      /** @param {string} name */
      const kept = (name) => store.read(/** @type {Resource} */ (site.files[name]), () => {});
      const externalData = await Promise.all(Object.entries(vision.data).map(async ([path, name]) => ({ path, data: await kept(name) })));
      return textgen.openSession(ort, await kept(vision.graph), { executionProviders: [device], externalData });
    });
  }
  const ends = { eosIds: manifest.eos_ids, bosId: manifest.bos_id };
  const tokenizer = spec === null ? null : new textgen.TextTokenizer(tokenizers, spec, ends);
  model = new textgen.Model(manifest, decoder, tokenizer, chatTemplate, jinja);
  const kept = [...resourcesOf(site, "wasm"), ...resourcesOf(site, "webgpu")];
  await store.keepOnly(kept);
  return { manifest, hasTemplate: chatTemplate !== null && tokenizer !== null, checkedFiles: filesOf(site, device).length };
}

/** The open model. */
function opened() {
  if (!model) throw new Error("the model is not open yet");
  return model;
}

/**
 * Continue a text.
 * @param {{ prompt: Prompt, options: Options }} argument
 * @param {Call} call reports tokens
 */
function write({ prompt, options }, call) {
  if (!prompt.text) throw new Error("the prompt is empty; write how the text begins");
  const ids = [...opened().encode(prompt.text), ...prompt.ids];
  return generate(ids, options, call);
}

/**
 * Answer the last message of a conversation.
 * @param {{ messages: Message[], options: Options, marks: Marks }} argument
 * @param {Call} call reports at first whether the template has begun the thinking, and then tokens
 */
async function chat({ messages, options, marks }, call) {
  const read = [];
  for (const message of messages) read.push(await withPictures(message, call.signal));
  const prompt = opened().renderChat(read).trimEnd();
  if (marks.thinking?.open.some((mark) => prompt.endsWith(mark.trim()))) call.report({ text: "", isThinking: true });
  return generate(opened().encodeChat(read), options, call);
}

/** A message whose pictures are read. @param {Message} message @param {AbortSignal} signal */
async function withPictures(message, signal) {
  if (typeof message.content === "string") return message;
  const content = [];
  for (const part of message.content) {
    if (signal.aborted) throw new Error("stopped by you, while pictures were read");
    content.push(part.type === "image" ? { ...part, image: await opened().readPicture(part.image) } : part);
  }
  return { ...message, content };
}

/**
 * @param {number[]} promptIds
 * @param {Options} options
 * @param {Call} call
 * @returns {Promise<Ending>}
 */
async function generate(promptIds, { seed, ...options }, { report, signal }) {
  const open = opened();
  const tokenizer = open.needTokenizer();
  const began = performance.now();
  let first = NaN;
  let last = NaN;
  let count = 0;
  let reason = "";
  const given = { ...options, ...(seed === undefined ? {} : { seed: BigInt(seed) }), logprobs: ALTERNATIVES };
  const chunks = textgen.generate(open, promptIds, given, { signal });
  for await (const chunk of chunks) {
    if (chunk.token_id !== null) {
      last = performance.now();
      if (!count++) first = last;
      report(tokenOf(chunk, tokenizer.piece(chunk.token_id)));
    } else if (chunk.text) report({ text: chunk.text }); // held back until now
    reason = chunk.finish_reason ?? reason;
  }
  return {
    reason,
    seed: String(chunks.config.seed),
    promptTokens: promptIds.length,
    firstTokenSeconds: (first - began) / 1000,
    tokensPerSecond: count > 1 ? ((count - 1) * 1000) / (last - first) : NaN,
  };
}

/**
 * @param {Chunk} chunk
 * @param {string} piece
 * @returns {Token}
 */
function tokenOf(chunk, piece) {
  return {
    id: /** @type {number} */ (chunk.token_id),
    piece,
    text: chunk.text,
    probability: Math.exp(/** @type {number} */ (chunk.logprob)),
    alternatives: chunk.alternatives.map((each) => ({ id: each.token_id, piece: each.text, probability: Math.exp(each.logprob) })),
  };
}

/**
 * Replay the golden runs.
 * @param {undefined} _
 * @param {Call} call reports each run
 */
async function replay(_, { report, signal }) {
  const open = opened();
  const release = open.take();
  try {
    for (const recorded of open.manifest.golden ?? []) {
      const run = exactRun(recorded); // WebAssembly computes products in float32; what WebGPU may round is within the limits
      const found = await replayOne(open.decoder, open.manifest, run);
      const text = (/** @type {number[]} */ ids) => open.tokenizer?.decode(ids) ?? "";
      /** @type {Replayed} */
      const replayed = {
        promptTokens: found.prompt_tokens,
        tokens: found.new_tokens,
        same: found.same,
        isRight: found.is_right,
        largestGap: found.largest_gap,
        prompt: text(run.prompt_ids),
        text: text(run.new_ids),
      };
      report(replayed);
      await nextTurn();
      if (signal.aborted) return;
    }
  } finally {
    release();
  }
}

/** @type {Record<string, (argument: any, call: Call) => Promise<unknown>>} */
const METHODS = { open, write, chat, replay };
/** @type {Map<number, AbortController>} */
const running = new Map();

self.onmessage = async ({ data }) => {
  if ("stop" in data) return running.get(data.stop)?.abort();
  const { call, method, argument } = data;
  const controller = new AbortController();
  running.set(call, controller);
  try {
    const report = (/** @type {unknown} */ value) => self.postMessage({ call, report: value });
    self.postMessage({ call, result: await METHODS[method]?.(argument, { report, signal: controller.signal }) });
  } catch (error) {
    self.postMessage({ call, error: explain(error) });
  } finally {
    running.delete(call);
  }
};
