/**
 * A package that is open for generation: its manifest, tokenizer and chat template, and a decoder over its graph.
 */

import { Decoder, openSession } from "./inference/decoder.js";
import { OptionError, PackageError, PromptError, TemplateError, shown } from "./errors.js";
import { Pictures } from "./images/pictures.js";
import { asText, countIn, placed, placesIn, unmarked, withoutPictures } from "./images/in_messages.js";
import { VISION_GRAPH, decoderGraph, sessionOptions, weightsOf } from "./package/graphs.js";
import { Package } from "./package/package.js";
import { fitted } from "./chat/fitting.js";
import { readable } from "./chat/parts.js";
import { checkMessages, renderChat } from "./text/chat_template.js";
import { PlainContent } from "./text/plain_content.js";
import { TextTokenizer } from "./text/tokenizer.js";

/** @import { InferenceSession } from "onnxruntime-common" */
/** @import { ChatInputs } from "./text/chat_template.js" */
/** @import { Libraries } from "./libraries.js" */
/** @import { Picture, Pixels } from "./images/pictures.js" */
/** @import { Manifest } from "./package/manifest.js" */
/** @import { FetchFile, OnBytes } from "./package/package.js" */

const TOKENIZER = "tokenizer.json";
const CHAT_TEMPLATE = "chat_template.jinja";
/** Most characters that any tokenizer puts into one token; a longer prompt is refused before it is tokenized. */
const CHARACTERS_PER_TOKEN = 256;

/**
 * @typedef {object} OpenOptions
 * @property {InferenceSession.SessionOptions} [session] options of onnxruntime, such as `{ executionProviders: ["webgpu"] }`
 * @property {OnBytes} [onBytes] called while files come
 * @property {string} [graph] name of the graph, for a package with several
 * @property {(name: string) => string} [path] where a file of the package lies; for onnxruntime-node, which reads the weights
 */

/** An open model, for one text at a time. */
export class Model {
  /**
   * @param {Manifest} manifest
   * @param {Decoder} decoder
   * @param {TextTokenizer | null} tokenizer
   * @param {string | null} chatTemplate
   * @param {Libraries["jinja"]} jinja
   */
  constructor(manifest, decoder, tokenizer, chatTemplate, jinja) {
    this.manifest = manifest;
    this.decoder = decoder;
    this.tokenizer = tokenizer;
    this.chatTemplate = chatTemplate;
    this.jinja = jinja;
    const others = manifest.images ? [manifest.images.placeholder] : [];
    this.plainContent = tokenizer && chatTemplate !== null ? new PlainContent(tokenizer, chatTemplate, others) : null;
    this.isBusy = false;
  }

  /**
   * Read a picture, for a part `{ type: "image", image: picture }` of a message, or by its `ids` in a prompt. The last 16 are kept.
   * Raises `PromptError` for what is no picture, and for a model that reads none here.
   * @param {Pixels} pixels
   * @returns {Promise<Picture>}
   */
  async readPicture(pixels) {
    if (!this.decoder.pictures) throw new PromptError(`${this.manifest.name} reads text alone here; leave the picture out`);
    return this.decoder.pictures.read(pixels);
  }

  /** Take the decoder for one text; returns what gives it back. */
  take() {
    if (this.isBusy) throw new OptionError("this model is generating another text; wait for its end, or open the package twice");
    this.isBusy = true;
    return () => {
      this.isBusy = false;
    };
  }

  /**
   * A prompt's token ids, after checks: not empty, in the vocabulary, and the context has space for one more.
   * @param {string | readonly number[]} prompt
   * @returns {readonly number[]}
   */
  encode(prompt) {
    const { vocab_size: vocabSize, context_length: contextLength } = this.manifest.geometry;
    if (typeof prompt === "string" && prompt.length > contextLength * CHARACTERS_PER_TOKEN) {
      throw new PromptError(`the prompt has ${prompt.length} characters; this model takes ${contextLength} tokens. Shorten it`);
    }
    if (prompt === "") {
      const begin = this.manifest.bos_id === null ? "" : `, or only the begin token: [${this.manifest.bos_id}]`;
      throw new PromptError(`the prompt is empty; give some text${begin}`);
    }
    const ids = typeof prompt === "string" ? this.needTokenizer().encode(prompt) : prompt;
    if (!Array.isArray(ids)) throw new PromptError(`a prompt should be text or a list of token ids, found ${shown(ids)}`);
    if (!ids.length) throw new PromptError("the prompt has no token ids; give at least one");
    const { pictures } = this.decoder;
    const wrong = ids.find((id) => !Number.isInteger(id) || (id < 0 && !pictures?.of(id)) || id >= vocabSize);
    if (wrong !== undefined) {
      throw new PromptError(`token id ${shown(wrong)} is outside the vocabulary; ids go from 0 to ${vocabSize - 1}`);
    }
    if (ids.length >= contextLength) {
      throw new PromptError(`the prompt has ${ids.length} tokens; this model takes ${contextLength - 1} at most. Shorten it`);
    }
    return ids;
  }

  /**
   * The token ids of a chat, for `generate`; raises `TemplateError` if the package has no chat template or it refuses the messages
   * in every order.
   * @param {readonly object[]} messages such as `{ role: "user", content: "Hello" }`
   * @param {Omit<ChatInputs, "bosToken" | "eosToken">} inputs
   */
  encodeChat(messages, inputs = {}) {
    const tokenizer = this.needTokenizer();
    const { images } = this.manifest;
    checkMessages(messages);
    const { places, pictures } = withoutPictures(messages);
    const encoded = (/** @type {readonly string[]} */ pieces) =>
      pieces.flatMap((text) => [...tokenizer.encode(text, { addSpecialTokens: false })]);
    if (!pictures.length || !images) return encoded(this.renderedPieces(places, inputs).pieces);
    const { pieces, numbers } = this.piecesWithPlaces(places, inputs, images.placeholder);
    const whole = pieces.map((text) => text.replaceAll(images.placeholder, () => images.expansion));
    return placed(encoded(whole), numbers.map((number) => /** @type {Picture} */ (pictures[number])), images);
  }

  /**
   * The pieces of a chat with the placeholder for each of its pictures, and the numbers of these in the order of the text; raises
   * `TemplateError` for a template that does not write them all.
   * @param {readonly object[]} messages
   * @param {Omit<ChatInputs, "bosToken" | "eosToken">} inputs
   * @param {string} placeholder
   */
  piecesWithPlaces(messages, inputs, placeholder) {
    const all = placesIn(messages);
    try {
      const { pieces, order } = this.renderedPieces(messages, inputs);
      const numbers = placesIn(order);
      if (numbers.length === all.length && countIn(pieces, placeholder) === all.length) return { pieces, numbers };
    } catch (error) {
      if (!(error instanceof TemplateError)) throw error; // a template that takes texts alone may refuse parts
    }
    const { pieces, numbers } = unmarked(this.renderedPieces(asText(readable(messages)), inputs).pieces, placeholder);
    if (countIn(pieces, placeholder) === all.length && new Set(numbers).size === all.length) return { pieces, numbers };
    throw new TemplateError("the chat template does not write the places of all pictures; put them into messages of the user");
  }

  /**
   * A chat as the text that the model reads; raises as `encodeChat` does.
   * @param {readonly object[]} messages
   * @param {Omit<ChatInputs, "bosToken" | "eosToken">} inputs
   */
  renderChat(messages, inputs = {}) {
    checkMessages(messages);
    const { places, pictures } = withoutPictures(messages);
    const { images } = this.manifest;
    const { pieces } = pictures.length && images ? this.piecesWithPlaces(places, inputs, images.placeholder) : this.renderedPieces(places, inputs);
    return pieces.join("");
  }

  /**
   * A chat in pieces that are encoded each by itself, so that what messages contain is no control token, and the messages in the
   * order in which they were written.
   * @param {readonly object[]} messages
   * @param {Omit<ChatInputs, "bosToken" | "eosToken">} inputs
   */
  renderedPieces(messages, inputs) {
    const template = this.chatTemplate;
    if (template === null) {
      throw new TemplateError(`${this.manifest.name} has no chat template; give it a plain text`);
    }
    const tokenizer = this.needTokenizer();
    const { bos_id: bosId, eos_ids: eosIds } = this.manifest;
    const tokens = {
      bosToken: bosId === null ? "" : tokenizer.piece(bosId),
      eosToken: eosIds.length ? tokenizer.piece(eosIds[0]) : "",
    };
    const texts = readable(messages);
    /** By a text that was written, the messages. @type {Map<string, readonly object[]>} */
    const written = new Map();
    /** @type {readonly object[]} */
    let order = texts;
    /** @type {(marked: readonly object[], others: typeof inputs) => string} */
    const render = (marked, others) => {
      const write = (/** @type {readonly object[]} */ each, /** @type {typeof inputs.tools} */ tools) => {
        const text = renderChat(this.jinja, template, each, { ...others, ...tokens, tools });
        written.set(text, each);
        return text;
      };
      const found = fitted(write, marked, others.tools);
      order = written.get(found) ?? order;
      return found;
    };
    const pieces = this.plainContent ? this.plainContent.rendered(render, texts, inputs) : [render(texts, inputs)];
    return { pieces, order };
  }

  /** The tokenizer; raises `PackageError` if the package has none. */
  needTokenizer() {
    if (this.tokenizer === null) {
      throw new PackageError(
        `${this.manifest.name} has no ${TOKENIZER} and works on token ids only; export it again with --tokenizer`,
      );
    }
    return this.tokenizer;
  }

  /** Free the cache and the session. */
  async close() {
    try {
      await this.decoder.pictures?.close();
    } finally {
      await this.decoder.close();
    }
  }
}

/**
 * Open a package: fetch its files, check each with its sha256, and open its graph.
 *
 * Raises `PackageError` for a package that is damaged or newer than
 * this library, and for a graph that onnxruntime cannot open on the chosen device.
 * @param {Libraries} libraries
 * @param {FetchFile} fetchFile
 * @param {OpenOptions} options
 */
export async function openModel({ ort, tokenizers, jinja }, fetchFile, { session = {}, onBytes, graph, path } = {}) {
  const files = await Package.open(fetchFile);
  const { manifest } = files;
  const name = graph ?? decoderGraph(manifest);
  /** The bytes of a graph, and the options with its weights. @param {string} graph */
  const fetched = async (graph) => {
    const bytes = await files.bytes(graph, onBytes);
    const externalData = [];
    for (const [location, name] of Object.entries(weightsOf(manifest, graph))) {
      const data = await files.bytes(name, onBytes);
      if (!path) externalData.push({ path: location, data });
    }
    const external = externalData.length ? { externalData } : {};
    return { bytes, options: { ...external, ...sessionOptions(graph), ...session } };
  };
  const textOf = async (/** @type {string} */ name) => (files.has(name) ? await files.text(name, onBytes) : null);
  const spec = await textOf(TOKENIZER);
  const tokenizer =
    spec === null ? null : new TextTokenizer(tokenizers, spec, { eosIds: manifest.eos_ids, bosId: manifest.bos_id });
  const chatTemplate = await textOf(CHAT_TEMPLATE);
  const { bytes, options } = await fetched(name);
  const decoder = await Decoder.open(ort, bytes, manifest.geometry, options, path?.(name));
  if (decoder.width && files.has(VISION_GRAPH)) {
    decoder.pictures = new Pictures(ort, async () => {
      const vision = await fetched(VISION_GRAPH);
      return openSession(ort, vision.bytes, vision.options, path?.(VISION_GRAPH));
    });
  }
  return new Model(manifest, decoder, tokenizer, chatTemplate, jinja);
}
