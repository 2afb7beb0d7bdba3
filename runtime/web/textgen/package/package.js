/**
 * Reads the files of a package by a function of the caller, and checks each with the size and the sha256 of the manifest.
 *
 * In a browser that function is `(name) => fetch(folder + name)`; in Node, one that makes a `Response` of a file's bytes.
 */

import { PackageError, firstLine, shown } from "../errors.js";
import { MANIFEST, readManifest } from "./manifest.js";
import { sha256 } from "./sha256.js";

/** @import { Manifest } from "./manifest.js" */

/** @typedef {(name: string) => Promise<Response>} FetchFile gets a file of the package by its name */
/**
 * @typedef {(name: string, loaded: number, total: number) => void} OnBytes called with the bytes of a file that have come so far
 */

/** An open package: its manifest, and its files on demand. */
export class Package {
  /** @param {Manifest} manifest @param {FetchFile} fetchFile */
  constructor(manifest, fetchFile) {
    this.manifest = manifest;
    this.fetchFile = fetchFile;
  }

  /** Read the manifest; raises `PackageError` if there is none, or if it is unusable. @param {FetchFile} fetchFile */
  static async open(fetchFile) {
    const response = await responseOf(fetchFile, MANIFEST);
    return new Package(await readManifest(await response.text()), fetchFile);
  }

  /** Whether the manifest lists a file. @param {string} name */
  has(name) {
    return Object.hasOwn(this.manifest.files, name);
  }

  /**
   * The bytes of a file; raises `PackageError` if the manifest does not list it, or if they are not what the manifest says.
   * @param {string} name
   * @param {OnBytes} [onBytes]
   */
  async bytes(name, onBytes) {
    if (!this.has(name)) throw new PackageError(`${this.manifest.name} has no ${name}; export the model again`);
    const { size, sha256: wanted } = this.manifest.files[name];
    const response = await responseOf(this.fetchFile, name);
    const bytes = await readBody(response, name, size, onBytes);
    const found = await sha256(bytes);
    if (found !== wanted) {
      throw new PackageError(
        `${name} is damaged: its sha256 is ${found.slice(0, 12)}..., not ${wanted.slice(0, 12)}...; copy it again`,
      );
    }
    return bytes;
  }

  /** The text of a file; raises as `bytes` does. @param {string} name @param {OnBytes} [onBytes] */
  async text(name, onBytes) {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await this.bytes(name, onBytes));
  }
}

/** @param {FetchFile} fetchFile @param {string} name */
async function responseOf(fetchFile, name) {
  let response;
  try {
    response = await fetchFile(name);
  } catch (error) {
    throw new PackageError(`${name} cannot be fetched (${firstLine(error)}); check the address of the package`, { cause: error });
  }
  if (!response.ok)
    throw new PackageError(`${name} cannot be fetched (status ${response.status}); check the address of the package`);
  return response;
}

/**
 * The body of a response, which should have `size` bytes.
 * @param {Response} response
 * @param {string} name
 * @param {number} size
 * @param {OnBytes} [onBytes]
 */
async function readBody(response, name, size, onBytes) {
  const bytes = new Uint8Array(size); // one array from the start: parts that are joined later take the memory twice
  let loaded = 0;
  for await (const part of chunksOf(response)) {
    if (loaded + part.length > size) {
      throw new PackageError(`${name} is damaged: more than ${size} bytes, which the manifest says; copy it again`);
    }
    bytes.set(part, loaded);
    loaded += part.length;
    onBytes?.(name, loaded, size);
  }
  if (loaded !== size)
    throw new PackageError(`${name} is damaged: ${loaded} bytes, the manifest says ${shown(size)}; copy it again`);
  return bytes;
}

/** The parts of a body; not every browser lets a stream be iterated. @param {Response} response */
async function* chunksOf(response) {
  const reader = response.body?.getReader();
  if (!reader) return;
  try {
    for (let next = await reader.read(); !next.done; next = await reader.read()) yield next.value;
  } finally {
    await reader.cancel();
  }
}
