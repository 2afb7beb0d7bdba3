/**
 * Pictures of prompts: a graph makes rows of the pixels, and ids below 0 name these, as in Python's `images.image_rows`.
 *
 * So a prompt with pictures is a list of ids like any other, and a later prompt that begins with the same picture is found by
 * comparing ids.
 */

import { ModelError, PackageError, PromptError, firstLine, shown } from "../errors.js";
import { sha256 } from "../package/sha256.js";

/** @import { InferenceSession } from "onnxruntime-common" */
/** @import { Libraries } from "../libraries.js" */

/**
 * @typedef {object} Pixels as `ImageData` of a browser has them
 * @property {Uint8Array | Uint8ClampedArray} data [height, width, channels]: grey, RGB or RGBA
 * @property {number} width
 * @property {number} height
 */

/**
 * @typedef {object} ImageRecord what the manifest says of pictures
 * @property {string} placeholder the text by which a chat template marks the place of a picture
 * @property {string} expansion what takes its place before the text is encoded
 * @property {number} token_id the id in the expansion that stands for one row
 * @property {number} tokens rows of each picture
 */

/** Most pixels of a picture, which become 12 bytes each. */
const MOST_PIXELS = 2 ** 24;
/** Most rows of a picture; ids of the next one begin after as many. */
const MOST_ROWS = 2 ** 14;
/** Pictures that are kept for later prompts. */
const KEPT = 16;
const PIXELS = "pixel_values";
const ROWS = "image_features";

/** A picture that was read. */
export class Picture {
  /** @param {Float32Array} rows [tokens, width] @param {number} width @param {number} first the id of the first row */
  constructor(rows, width, first) {
    this.rows = rows;
    this.width = width;
    this.first = first;
    /** What a prompt has in the place of the picture. @type {number[]} */
    this.ids = Array.from({ length: rows.length / width }, (_, place) => first - place);
  }

  /** The row of one of its ids. @param {number} id */
  row(id) {
    const place = this.first - id;
    return this.rows.subarray(place * this.width, (place + 1) * this.width);
  }
}

/** Reads pictures, and knows the last ones. */
export class Pictures {
  /**
   * @param {Libraries["ort"]} ort
   * @param {() => Promise<InferenceSession>} open opens the graph, at the first picture
   */
  constructor(ort, open) {
    this.ort = ort;
    this.open = open;
    /** @type {Promise<InferenceSession> | null} */
    this.session = null;
    /** By digest, the one that was used last at the end. @type {Map<string, Promise<Picture>>} */
    this.kept = new Map();
    /** By the id of the first row, those that anyone holds. @type {Map<number, WeakRef<Picture>>} */
    this.living = new Map();
    this.count = 0;
  }

  /**
   * Read a picture, unless it is known. Raises `PromptError` for what is none, and `ModelError` if the graph fails.
   * @param {Pixels} pixels
   * @returns {Promise<Picture>}
   */
  async read(pixels) {
    const { data, width, height } = checked(pixels);
    const sizes = new TextEncoder().encode(`${height} ${width} ${data.length}`);
    const digest = await sha256(joined(sizes, data));
    const found = this.kept.get(digest) ?? this.compute(data, width, height);
    this.kept.delete(digest);
    this.kept.set(digest, found);
    for (const oldest of this.kept.keys()) {
      if (this.kept.size <= KEPT) break;
      this.kept.delete(oldest);
    }
    try {
      return await found;
    } catch (error) {
      if (this.kept.get(digest) === found) this.kept.delete(digest);
      throw error;
    }
  }

  /**
   * Compute the rows of a picture.
   * @param {Uint8Array | Uint8ClampedArray} data
   * @param {number} width
   * @param {number} height
   */
  async compute(data, width, height) {
    const session = await this.opened();
    let rows;
    try {
      const given = new this.ort.Tensor("float32", planes(data, width * height), [1, 3, height, width]);
      rows = (await session.run({ [PIXELS]: given }))[ROWS];
    } catch (error) {
      throw new ModelError(`the model failed while it read a picture (${firstLine(error)})`, { cause: error });
    }
    if (!rows) throw new PackageError(`the graph that reads pictures lacks ${ROWS}; export the model again`);
    const found = /** @type {Float32Array} */ (await rows.getData(true));
    const picture = new Picture(Float32Array.from(found), /** @type {number} */ (rows.dims.at(-1)), -1 - MOST_ROWS * this.count++);
    for (const [first, each] of this.living) if (!each.deref()) this.living.delete(first);
    this.living.set(picture.first, new WeakRef(picture));
    return picture;
  }

  /** The graph, which is opened once; after a failure, at the next picture again. */
  async opened() {
    this.session ??= this.open();
    try {
      return await this.session;
    } catch (error) {
      this.session = null;
      throw error;
    }
  }

  /** The picture of an id; raises `PromptError` for one that nobody holds any more. @param {number} id */
  of(id) {
    const first = -1 - MOST_ROWS * Math.floor((-1 - id) / MOST_ROWS);
    const found = this.living.get(first)?.deref();
    if (found && id > first - found.ids.length) return found;
    throw new PromptError("the prompt has a picture that is not at hand any more; read the picture again");
  }

  /** The pictures in a prompt; who may feed it has to hold them. @param {readonly number[]} ids */
  in(ids) {
    return [...new Set(ids.filter((id) => id < 0).map((id) => this.of(id)))];
  }

  /** Free the graph. */
  async close() {
    this.kept.clear();
    if (this.session) await (await this.session).release();
  }
}

/** @param {Pixels} pixels @returns {Pixels} */
function checked(pixels) {
  const { data, width, height } = pixels ?? {};
  const areSizes = [width, height].every((size) => Number.isInteger(size) && size > 0);
  if (!areSizes || !(data instanceof Uint8Array || data instanceof Uint8ClampedArray)) {
    throw new PromptError(`a picture should be {data, width, height} with bytes as data, found ${shown(pixels)}`);
  }
  if (width * height > MOST_PIXELS) {
    throw new PromptError(`the picture has ${width * height} pixels, and at most ${MOST_PIXELS} are read; make it smaller`);
  }
  if (![1, 3, 4].includes(data.length / (width * height))) {
    throw new PromptError(`a picture of ${width} by ${height} pixels has ${data.length} bytes; give 1, 3 or 4 for each pixel`);
  }
  return pixels;
}

/**
 * Red, green and blue one after the other; what is transparent is white.
 * @param {Uint8Array | Uint8ClampedArray} data
 * @param {number} count of pixels
 */
function planes(data, count) {
  const channels = data.length / count;
  const found = new Float32Array(3 * count);
  for (let pixel = 0; pixel < count; pixel++) {
    const alpha = channels === 4 ? /** @type {number} */ (data[4 * pixel + 3]) : 255;
    for (let color = 0; color < 3; color++) {
      const value = /** @type {number} */ (data[channels * pixel + (channels === 1 ? 0 : color)]);
      found[color * count + pixel] = alpha === 255 ? value : Math.round((value * alpha + 255 * (255 - alpha)) / 255);
    }
  }
  return found;
}

/** @param {Uint8Array} one @param {Uint8Array | Uint8ClampedArray} other */
function joined(one, other) {
  const both = new Uint8Array(one.length + other.length);
  both.set(one);
  both.set(other, one.length);
  return both;
}
