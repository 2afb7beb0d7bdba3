/**
 * The description of a package, `manifest.json`: read, compared with its digest, and checked as far as this library uses it.
 */

import { canonicalJson } from "./canonical_json.js";
import { PackageError, firstLine, shown } from "../errors.js";
import { sha256 } from "./sha256.js";

/** @import { ImageRecord } from "../images/pictures.js" */

/**
 * @typedef {object} Geometry the sizes that this library uses
 * @property {number} vocab_size
 * @property {number} context_length
 */

/** @typedef {{ prompt_ids: number[], new_ids: number[], exact_ids?: number[] }} GoldenRun */

/**
 * @typedef {object} Manifest what this library uses; the rest of the file is there too
 * @property {string} name
 * @property {string} precision
 * @property {string} target
 * @property {Geometry} geometry
 * @property {number | null} bos_id
 * @property {number[]} eos_ids
 * @property {Record<string, { size: number, sha256: string }>} files
 * @property {Record<string, unknown>} [generation]
 * @property {Record<string, any>} [certificate]
 * @property {GoldenRun[]} [golden]
 * @property {ImageRecord} [images]
 * @property {number} format_version
 * @property {string} [sha256]
 */

export const MANIFEST = "manifest.json";
const NEWEST_VERSION = 2;
const LARGEST_SIZE = 2 ** 24;

/**
 * Read the text of a manifest; raises `PackageError` for an unknown format version, a wrong digest or an unusable value.
 * @param {string} text
 * @returns {Promise<Manifest>}
 */
export async function readManifest(text) {
  const manifest = /** @type {Manifest} */ (parsed(text));
  const version = manifest?.format_version;
  if (!Number.isInteger(version) || version < 1 || version > NEWEST_VERSION) {
    throw new PackageError(
      `${MANIFEST} has format version ${shown(version)} and this library reads 1 to ${NEWEST_VERSION}; take its newest version, ` +
        "or export the model again",
    );
  }
  if (manifest.sha256 && manifest.sha256 !== (await sha256(new TextEncoder().encode(canonicalJson(text, "sha256"))))) {
    throw new PackageError(`${MANIFEST} is damaged: its content does not match its sha256; export or copy the model again`);
  }
  check(typeof manifest.name === "string", "name", "a string", manifest.name);
  for (const name of /** @type {const} */ (["vocab_size", "context_length"])) {
    const size = manifest.geometry?.[name];
    check(Number.isInteger(size) && 1 <= size && size <= LARGEST_SIZE, `geometry.${name}`, `from 1 to ${LARGEST_SIZE}`, size);
  }
  const vocabSize = manifest.geometry.vocab_size;
  check(manifest.bos_id === null || areIds([manifest.bos_id], vocabSize), "bos_id", "a token id or null", manifest.bos_id);
  check(areIds(manifest.eos_ids, vocabSize), "eos_ids", "token ids", manifest.eos_ids);
  check(typeof manifest.files === "object" && manifest.files !== null, "files", "a JSON object", manifest.files);
  for (const [name, record] of Object.entries(manifest.files)) {
    const isRight = Number.isSafeInteger(record?.size) && record.size >= 0 && /^[0-9a-f]{64}$/.test(record.sha256);
    check(isRight, `files[${shown(name)}]`, "a size and a sha256", record);
  }
  const { images } = manifest;
  const isRight =
    !images ||
    ([images.placeholder, images.expansion].every((text) => typeof text === "string" && text) && Number.isInteger(images.token_id));
  check(isRight, "images", "a placeholder, its expansion and a token id", images);
  for (const [index, run] of (manifest.golden ?? []).entries()) {
    const isRight =
      areIds(run?.prompt_ids, vocabSize) && areIds(run.new_ids, vocabSize) && run.prompt_ids.length && run.new_ids.length;
    check(Boolean(isRight), `golden[${index}]`, "token ids in prompt_ids and in new_ids", run);
  }
  return manifest;
}

/** @param {string} text @returns {unknown} */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new PackageError(`${MANIFEST} is not JSON (${firstLine(error)}); export or copy the model again`, { cause: error });
  }
}

/** @param {unknown} ids @param {number} vocabSize @returns {ids is number[]} */
function areIds(ids, vocabSize) {
  return Array.isArray(ids) && ids.every((id) => Number.isInteger(id) && 0 <= id && id < vocabSize);
}

/** @param {boolean} isRight @param {string} where @param {string} wanted @param {unknown} found */
function check(isRight, where, wanted, found) {
  if (!isRight)
    throw new PackageError(`${where} in ${MANIFEST} should be ${wanted}, found ${shown(found)}; export the model again`);
}
