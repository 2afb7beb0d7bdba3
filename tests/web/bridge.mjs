// Answers the calls of tests, one JSON line each: [function, ...arguments] -> {result} or {error, message}.
// Copied next to `textgen` by tests/support/node.py. Seeds are text, as JSON has no BigInt; float32 arrays are base64.

import * as jinja from "@huggingface/jinja";
import * as tokenizers from "@huggingface/tokenizers";
import { createReadStream } from "node:fs";
import { access, readFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { Readable } from "node:stream";
import { fitted } from "./textgen/chat/fitting.js";
import { readable } from "./textgen/chat/parts.js";
import { canonicalJson } from "./textgen/package/canonical_json.js";
import { truncate } from "./textgen/sampling/draw.js";
import { float16ToFloat32 } from "./textgen/inference/float16.js";
import { graphMetadata } from "./textgen/package/graph_metadata.js";
import * as textgen from "./textgen/index.js";
import { readManifest } from "./textgen/package/manifest.js";
import { makeConfig } from "./textgen/options/generation_config.js";
import { uniform } from "./textgen/sampling/philox.js";
import { chooseToken } from "./textgen/sampling/sampler.js";
import { PlainContent } from "./textgen/text/plain_content.js";
import { StopMatcher } from "./textgen/text/stop_strings.js";
import { StreamDecoder } from "./textgen/text/stream_decoder.js";
import { strftime } from "./textgen/text/strftime.js";

const handles = [];
const keep = (value) => handles.push(value) - 1;
const floats = (text) => new Float32Array(Uint8Array.from(Buffer.from(text, "base64")).buffer);
const withSeed = (options) => ("seed" in options ? { ...options, seed: BigInt(options.seed) } : options);
/** A message whose pictures are given by their handles. */
const withPictures = (message) => {
  if (!Array.isArray(message?.content)) return message;
  return { ...message, content: message.content.map((part) => ("image" in part ? { ...part, image: handles[part.image] } : part)) };
};
const fileOf = (folder) => async (name) => {
  try {
    await access(`${folder}/${name}`);
    return new Response(Readable.toWeb(createReadStream(`${folder}/${name}`)));
  } catch {
    return new Response(null, { status: 404 });
  }
};

const functions = {
  uniform: (places) =>
    places.map(([seed, sample, step]) => uniform({ seed: BigInt(seed), sample, step })),

  /** The choices of a text whose earlier ids are given. */
  choices: ({ options, prompt_ids: promptIds, sample, rows, ids }) => {
    const config = makeConfig({}, withSeed(options));
    return rows.map((row, step) => chooseToken(floats(row), config, { promptIds, tokenIds: ids.slice(0, step), sample }));
  },
  /** The ids after the last stage of each row. */
  kept: (options, rows) => {
    const config = makeConfig({}, withSeed(options));
    return rows.map((row) => [...(truncate(floats(row), config).ids ?? [])]);
  },
  canonical: (text, without) => canonicalJson(text, without),
  manifest: (text) => readManifest(text),
  metadata: async (path) => Object.fromEntries(graphMetadata(await readFile(path))),
  halves: (bits) => [...float16ToFloat32(Uint16Array.from(bits))].map(String),
  stop: (stops, chunks) => {
    const matcher = new StopMatcher(stops);
    return [[...chunks.map((chunk) => matcher.push(chunk)), matcher.flush()], matcher.matched];
  },

  tokenizer: (text, eosIds, bosId) => keep(new textgen.TextTokenizer(tokenizers, text, { eosIds, bosId })),
  encode: (handle, texts, addSpecialTokens) => texts.map((text) => handles[handle].encode(text, { addSpecialTokens })),
  decode: (handle, lists) => lists.map((ids) => handles[handle].decode(ids)),
  pieces: (handle, ids) => ids.map((id) => handles[handle].piece(id)),
  streams: (handle, lists, after) =>
    lists.map((ids) => {
      const stream = new StreamDecoder(handles[handle], after);
      return [...ids.map((id) => stream.push(id)), stream.flush()];
    }),
  render: (template, messages, inputs) =>
    textgen.renderChat(jinja, template, messages, { ...inputs, ...(inputs.now ? { now: new Date(inputs.now) } : {}) }),
  /** Each chat as a template writes it that may refuse the order of its messages, or the error. */
  fitted: (template, chats) =>
    chats.map((messages) => {
      try {
        return fitted((order, tools) => textgen.renderChat(jinja, template, order, { tools }), readable(messages));
      } catch (error) {
        return error.name;
      }
    }),
  /** The text of a chat, and its ids, if what messages contain is plain text. */
  plain: (handle, template, messages) => {
    const render = (marked, inputs) => textgen.renderChat(jinja, template, marked, inputs);
    const pieces = new PlainContent(handles[handle], template).rendered(render, messages, {});
    return [pieces.join(""), pieces.flatMap((text) => handles[handle].encode(text, { addSpecialTokens: false }))];
  },
  strftime: (format, date) => strftime(format, new Date(date)),

  /** Open a folder; `runtime` is "node" or "web". */
  open: async (runtime, folder, options = {}) => {
    if (runtime === "node") {
      const { default: ort } = await import("onnxruntime-node");
      const session = { intraOpNumThreads: 1 };
      return keep(
        await textgen.openModel({ ort, tokenizers, jinja }, fileOf(folder), {
          session,
          path: (name) => `${folder}/${name}`,
          ...options,
        }),
      );
    }
    const ort = await import("onnxruntime-web");
    ort.env.wasm.numThreads = 1;
    return keep(
      await textgen.openModel({ ort, tokenizers, jinja }, fileOf(folder), {
        session: { executionProviders: ["wasm"] },
        ...options,
      }),
    );
  },
  bytes: async (folder, name) => {
    const parts = [];
    const bytes = await (await textgen.Package.open(fileOf(folder))).bytes(name, (_, loaded, total) => parts.push([loaded, total]));
    return [bytes.length, parts];
  },
  generate: async (handle, prompt, options, { stopAfter, sample } = {}) => {
    const control = new AbortController();
    const progress = [];
    const onProgress = (done, total) => progress.push([done, total]);
    const stream = textgen.generate(handles[handle], prompt, withSeed(options), { signal: control.signal, onProgress, sample });
    const chunks = [];
    for await (const chunk of stream) {
      chunks.push(chunk);
      if (chunks.length === stopAfter) control.abort();
    }
    return { chunks, progress, seed: String(stream.config.seed), prompt_ids: stream.promptIds, pictures: stream.pictures.length };
  },
  /** Two texts at once, and one that its caller leaves. */
  together: async (handle, prompt, options) => {
    const first = textgen.generate(handles[handle], prompt, options);
    await first.next();
    const second = await textgen
      .generate(handles[handle], prompt, options)
      .next()
      .catch((error) => error.message);
    await first.return();
    const third = textgen.generate(handles[handle], prompt, options);
    const { value } = await third.next();
    await third.return();
    return [second, value.token_id];
  },
  kept_length: (handle) => handles[handle].decoder.kept.ids.length,
  chat: (handle, messages, inputs) => handles[handle].renderChat(messages, inputs),
  encode_chat: (handle, messages) => handles[handle].encodeChat(messages.map(withPictures)),
  /** Read a picture whose bytes are base64. */
  picture: async (handle, { data, width, height }) =>
    keep(await handles[handle].readPicture({ data: Uint8Array.from(Buffer.from(data, "base64")), width, height })),
  ids: (handle) => handles[handle].ids,
  /** The same picture twice at once. */
  pictures_at_once: async (handle, { data, width, height }) => {
    const given = { data: Uint8Array.from(Buffer.from(data, "base64")), width, height };
    const [one, other] = await Promise.all([handles[handle].readPicture(given), handles[handle].readPicture(given)]);
    return one === other && handles[handle].decoder.pictures.of(one.ids[0]) === one;
  },
  /** The same model with another chat template, or another expansion. */
  changed: (handle, template, images = {}) => {
    const { manifest, decoder, tokenizer, chatTemplate } = handles[handle];
    const other = { ...manifest, images: { ...manifest.images, ...images } };
    return keep(new textgen.Model(other, decoder, tokenizer, template ?? chatTemplate, jinja));
  },
  golden: (handle, isExact = false) => textgen.replayGolden(handles[handle], isExact),
  close: (handle) => handles[handle].close(),
};

for await (const line of createInterface({ input: process.stdin })) {
  const [name, ...given] = JSON.parse(line);
  let answer;
  try {
    answer = { result: (await functions[name](...given)) ?? null };
  } catch (error) {
    answer = { error: error.name, message: error.message };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
