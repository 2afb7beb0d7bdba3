/**
 * Token ids in, logits out: an open graph and the cache of one text.
 *
 * Prompts are fed in parts, so that a caller sees progress and can stop between them. Parts begin at even offsets and have at least
 * two tokens where the graph takes that many, as in Python: then keys and values do not depend on how a prompt was split.
 */

import { carriedTensors, dispose, emptyTensors, nextTensors } from "./cache.js";
import { ModelError, PackageError, PromptError, firstLine } from "../errors.js";
import { float16ToFloat32 } from "./float16.js";
import { graphMetadata } from "../package/graph_metadata.js";

/** @import { InferenceSession, Tensor } from "onnxruntime-common" */
/** @import { Geometry } from "../package/manifest.js" */
/** @import { Tensors } from "./cache.js" */
/** @import { Libraries } from "../libraries.js" */
/** @import { Pictures } from "../images/pictures.js" */

/** Tokens of a prompt that are fed in one run. */
const PART_SIZE = 128;
/** The input of a decoder that takes rows of pictures. */
const EMBEDS = "inputs_embeds";

/** @typedef {{ ids: number[], tensors: Tensors }} Held token ids, and the tensors that hold them */
/** @typedef {(done: number, total: number) => void} OnProgress called with the tokens of a prompt that have been fed */

/** A graph and the cache of one text. */
export class Decoder {
  /**
   * @param {Libraries["ort"]} ort
   * @param {InferenceSession} session
   * @param {Geometry} geometry
   * @param {number | null} rotarySwitch length of a text beyond which all its keys are rotated differently
   */
  constructor(ort, session, geometry, rotarySwitch) {
    this.ort = ort;
    this.session = session;
    this.geometry = geometry;
    this.rotarySwitch = rotarySwitch;
    this.inputs = new Map(session.inputMetadata.map((each) => [each.name, each]));
    const ids = this.inputs.get("input_ids") ?? this.inputs.get(EMBEDS);
    if (!ids?.isTensor || !session.outputNames.includes("logits")) {
      throw new PackageError("the graph lacks input_ids or logits, which every decoder needs; export the model again");
    }
    /** Whether a run takes a single token, as in some recurrent models. */
    this.takesSingleTokens = ids.shape[1] === 1;
    /** Of a decoder that takes rows of pictures: one more than a row has, for an id in front of it. */
    this.width = Number(ids.shape[2] ?? 0);
    /** Those that ids below 0 name. @type {Pictures | null} */
    this.pictures = null;
    this.carried = carriedTensors(session);
    this.held = this.nothing();
    /** What a later prompt with the same beginning starts from. */
    this.kept = this.nothing();
  }

  /**
   * Open a graph.
   *
   * `options` go to `InferenceSession.create`: for example `executionProviders: ["webgpu"]`, or `externalData` where the graph is
   * given as bytes. With WebGPU the cache stays in the GPU's memory. Raises `PackageError` if onnxruntime cannot open the graph.
   * @param {Libraries["ort"]} ort
   * @param {Uint8Array} model the bytes of the graph
   * @param {Geometry} geometry
   * @param {InferenceSession.SessionOptions} options
   * @param {string} [path] of the graph, for onnxruntime-node, which finds the weights next to it
   */
  static async open(ort, model, geometry, options, path) {
    const isOnGpu = options.executionProviders?.some((each) => (typeof each === "string" ? each : each.name) === "webgpu");
    /** @type {InferenceSession.SessionOptions} */
    const all = { ...(isOnGpu ? { preferredOutputLocation: "gpu-buffer" } : {}), ...options };
    const rotarySwitch = graphMetadata(model).get("rotary_switch");
    const session = await openSession(ort, model, all, path);
    return new Decoder(ort, session, geometry, rotarySwitch === undefined ? null : Number(rotarySwitch));
  }

  /** Tensors that hold no token. @returns {Held} */
  nothing() {
    return { ids: [], tensors: emptyTensors(this.ort, this.carried) };
  }

  /** Make the cache hold some tokens instead of the present ones. @param {Held} held */
  hold(held) {
    if (this.held.tensors !== this.kept.tensors && this.held.tensors !== held.tensors) dispose(this.held.tensors);
    this.held = held;
  }

  /** Keep what the cache holds now, for a later prompt that begins with it. */
  keep() {
    if (this.kept.tensors !== this.held.tensors) dispose(this.kept.tensors);
    this.kept = this.held;
  }

  /** Free the cache and the session; nothing can be fed after this. */
  async close() {
    if (this.kept.tensors !== this.held.tensors) dispose(this.kept.tensors);
    dispose(this.held.tensors);
    await this.session.release();
  }

  /**
   * Make the cache hold exactly a prompt, in parts; the last item is the logits [vocabulary] after it, the others are null.
   *
   * If an earlier prompt was kept and this one begins with it, only the rest is fed.
   * @param {readonly number[]} ids
   * @param {OnProgress} [onProgress]
   * @returns {AsyncGenerator<Float32Array | null, void, void>}
   */
  async *prefill(ids, onProgress) {
    const isKept = this.kept.ids.length < ids.length - 1 && this.kept.ids.every((id, place) => id === ids[place]);
    this.hold(isKept ? this.kept : this.nothing());
    const keptLength = keepable(ids);
    for (let start = this.held.ids.length; start < ids.length;) {
      const limit = start < keptLength ? keptLength : ids.length;
      const end = pictureBoundary(ids, partEnd(start, limit));
      const logits = await this.feed(ids.slice(start, end));
      if (end === keptLength) this.keep();
      onProgress?.(end, ids.length);
      yield end === ids.length ? logits : null;
      start = end;
    }
  }

  /**
   * Append tokens; returns the logits [vocabulary] of the last one.
   *
   * Raises `PromptError` beyond the context, and `ModelError` if the run fails.
   * @param {readonly number[]} ids
   * @returns {Promise<Float32Array>}
   */
  async feed(ids) {
    const before = this.held.ids.length;
    const total = before + ids.length;
    if (total > this.geometry.context_length) {
      throw new PromptError(`the text has ${total} tokens; this model takes ${this.geometry.context_length} at most`);
    }
    if (before > 0 && this.isLong(before) !== this.isLong(total)) {
      const whole = [...this.held.ids, ...ids]; // all keys have to be computed again
      this.hold(this.nothing());
      return this.feed(whole);
    }
    if (this.takesSingleTokens && ids.length > 1) {
      for (const id of ids.slice(0, -1)) await this.feed([id]);
      return this.feed(ids.slice(-1));
    }
    let results;
    try {
      results = await this.session.run({ ...this.held.tensors, ...this.tokenInputs(ids, before) });
    } catch (error) {
      throw new ModelError(`the model failed while it ran (${firstLine(error)})`, { cause: error });
    }
    this.hold({ ids: [...this.held.ids, ...ids], tensors: nextTensors(this.carried, results) });
    return await lastRow(results["logits"], this.geometry.vocab_size);
  }

  /** Whether keys of a text of this length are rotated as for long texts. @param {number} length */
  isLong(length) {
    return this.rotarySwitch !== null && length > this.rotarySwitch;
  }

  /**
   * What a decoder takes that reads pictures [1, new, width]: an id in front of zeros, or -1 in front of a row of a picture.
   * @param {readonly number[]} ids
   */
  embeddings(ids) {
    const found = new Float32Array(ids.length * this.width);
    ids.forEach((id, place) => {
      if (id >= 0) found[place * this.width] = id;
      else if (this.pictures) found.set(this.pictures.of(id).row(id), place * this.width);
    });
    return new this.ort.Tensor("float32", found, [1, ids.length, this.width]);
  }

  /**
   * The inputs besides the cache for new tokens after `before` others.
   * @param {readonly number[]} ids
   * @param {number} before
   */
  tokenInputs(ids, before) {
    const total = before + ids.length;
    /** @type {Record<string, [number[], number[]]>} values and shape */
    const values = {
      input_ids: [[...ids], [1, ids.length]],
      attention_mask: [new Array(total).fill(1), [1, total]],
      position_ids: [ids.map((_, place) => before + place), [1, ids.length]],
      logits_positions: [[-1], [1]],
    };
    /** @type {Tensors} */
    const inputs = this.width ? { [EMBEDS]: this.embeddings(ids) } : {};
    for (const [name, [numbers, shape]] of Object.entries(values)) {
      // `logits_positions` has a default, the last token, and onnxruntime's JavaScript shows no inputs that have one.
      if (this.inputs.has(name)) inputs[name] = new this.ort.Tensor("int64", BigInt64Array.from(numbers, BigInt), shape);
    }
    return inputs;
  }
}

/**
 * Open a graph; raises `PackageError` if onnxruntime cannot.
 * @param {Libraries["ort"]} ort
 * @param {Uint8Array} model the bytes of the graph
 * @param {InferenceSession.SessionOptions} options
 * @param {string} [path] of the graph, for onnxruntime-node
 */
export async function openSession({ InferenceSession }, model, options, path) {
  const all = { logSeverityLevel: /** @type {const} */ (3), ...options };
  try {
    return await (path === undefined ? InferenceSession.create(model, all) : InferenceSession.create(path, all));
  } catch (error) {
    const why = `onnxruntime cannot open the graph (${firstLine(error)})`;
    throw new PackageError(`${why}; take another device, or a package that was exported for this one`, { cause: error });
  }
}

/**
 * How much of a prompt is kept for later prompts: an even number of tokens, with at least two after it, so that a text which
 * continues from there is bit for bit the text that is computed from its beginning; no part of a picture.
 * @param {readonly number[]} ids
 */
export function keepable(ids) {
  let length = Math.max(0, ids.length - 2 - (ids.length % 2));
  while (pictureBoundary(ids, length) !== length) length -= 2;
  return length;
}

/**
 * Where a part ends that should end at `end`: after the picture that it would cut, which may see itself in both directions.
 * @param {readonly number[]} ids
 * @param {number} end
 */
export function pictureBoundary(ids, end) {
  let found = end;
  while (found > 0 && found < ids.length && Number(ids[found - 1]) < 0 && Number(ids[found]) < 0) found++;
  return found;
}

/** The end of the part that begins at `start`; no part has a single token. @param {number} start @param {number} end */
export function partEnd(start, end) {
  return start + PART_SIZE >= end - 1 ? end : start + PART_SIZE;
}

/**
 * The last row of logits, as float32; frees the tensor.
 * @param {Tensor} logits
 * @param {number} width
 * @returns {Promise<Float32Array>}
 */
async function lastRow(logits, width) {
  const data = /** @type {Float32Array | Float64Array | Uint16Array} */ (await logits.getData(true));
  const row = data.slice(data.length - width);
  return row instanceof Uint16Array ? float16ToFloat32(row) : Float32Array.from(row);
}
