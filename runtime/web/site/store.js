/**
 * Fetches files once and keeps them in the browser (Cache API), under their sha256. So a second visit fetches nothing, and a new
 * version of a site fetches only what has changed.
 *
 * Bytes are compared with their sha256 each time that they are read, from the network and from the browser's storage.
 */

import { sha256 } from "../textgen/package/sha256.js";

/** @import { Resource } from "./site_file.js" */

/** How often a download is tried again after no byte has come. */
const MOST_FAILURES = 5;
/** Milliseconds before the first of these tries; each later one waits twice as long as the one before. */
const FIRST_PAUSE = 500;

/** A file that cannot be had, or is not the one that the site describes. */
export class FileError extends Error {}

export class Store {
  /** @param {string} site the address of the site; sites of the same origin keep their files apart */
  constructor(site) {
    this.site = site;
    /** @type {Promise<Cache | null>} */
    this.cache = globalThis.caches ? caches.open(`onnx-textgen files of ${site}`).catch(() => null) : Promise.resolve(null);
  }

  /** The key of a file. @param {Resource} resource */
  key(resource) {
    return new URL(`kept/${resource.sha256}`, this.site).href;
  }

  /** Whether the browser has a file already. @param {Resource} resource */
  async has(resource) {
    return Boolean(await (await this.cache)?.match(this.key(resource)));
  }

  /**
   * The bytes of a file: from the browser's storage, else from the network, and then they are kept.
   * @param {Resource} resource
   * @param {(bytes: number) => void} report is called with the number of bytes that have come since its last call
   * @returns {Promise<Uint8Array<ArrayBuffer>>}
   */
  async read(resource, report = () => {}) {
    const cache = await this.cache;
    const kept = await cache?.match(this.key(resource));
    if (kept) {
      const bytes = new Uint8Array(await kept.arrayBuffer());
      if (await isIntact(bytes, resource)) {
        report(bytes.length);
        return bytes;
      }
      await cache?.delete(this.key(resource)); // damaged on this machine: fetched again
    }
    const bytes = await download(new URL(resource.url, this.site), resource, report);
    if (!(await isIntact(bytes, resource))) {
      throw new FileError(
        `${resource.url} is not the file that this site was made with: its sha256 differs, so it is not used; ` +
          "reload the page, and if that does not help, the site has to be published again",
      );
    }
    try {
      await cache?.put(this.key(resource), new Response(bytes, { headers: { "Content-Length": String(bytes.length) } }));
    } catch {
      // The browser's storage is full: the file is fetched again at the next visit.
    }
    return bytes;
  }

  /**
   * Delete what this site no longer needs.
   * @param {Resource[]} resources
   */
  async keepOnly(resources) {
    const cache = await this.cache;
    const wanted = new Set(resources.map((each) => this.key(each)));
    const old = ((await cache?.keys()) ?? []).filter((request) => !wanted.has(request.url));
    await Promise.all(old.map((request) => cache?.delete(request)));
  }
}

/**
 * Fetch a file whole. Where the connection drops, the rest is requested (`Range`), or all of it if the host sends no parts.
 * @param {URL} url
 * @param {Resource} resource
 * @param {(bytes: number) => void} report
 */
async function download(url, resource, report) {
  const bytes = new Uint8Array(resource.size);
  let length = 0;
  for (let failures = 0; ; ) {
    const answer = await request(url, resource, length).catch(async (error) => {
      if (!length || ++failures > MOST_FAILURES) throw error;
      await pause(failures);
      return null;
    });
    if (!answer) continue;
    if (length && answer.status !== 206) {
      report(-length); // from its beginning again
      length = 0;
    }
    const before = length;
    const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done || length + value.length > bytes.length) return bytes.subarray(0, length); // another file; its length tells
        bytes.set(value, length);
        length += value.length;
        report(value.length);
        if (length === bytes.length) return bytes;
      }
    } catch (error) {
      failures = length > before ? 1 : failures + 1;
      if (failures > MOST_FAILURES) {
        throw new FileError(`${resource.url} was cut off while it was fetched; check the network and reload the page`, { cause: error });
      }
      await pause(failures);
    }
  }
}

/** Wait before another try, longer each time. @param {number} failures */
const pause = (failures) => new Promise((resolve) => setTimeout(resolve, FIRST_PAUSE * 2 ** (failures - 1)));

/**
 * The answer of the server to a request for a file, from a place in it on. Raises `FileError`.
 * @param {URL} url
 * @param {Resource} resource
 * @param {number} from
 */
async function request(url, resource, from) {
  let answer;
  try {
    // The store keeps the file; the browser's own cache would keep it a second time.
    const rest = from ? { headers: { Range: `bytes=${from}-` } } : {};
    answer = await fetch(url, { cache: "no-store", credentials: "same-origin", ...rest });
  } catch (error) {
    throw new FileError(`${resource.url} cannot be fetched: no answer from ${url.host}; connect to the network and reload the page`, {
      cause: error,
    });
  }
  if (!answer.ok || !answer.body) {
    throw new FileError(`${resource.url} is missing on the server (${answer.status}); the whole folder of the site has to be published`);
  }
  return answer;
}

/**
 * Whether bytes are those of a resource.
 * @param {Uint8Array<ArrayBuffer>} bytes
 * @param {Resource} resource
 */
async function isIntact(bytes, resource) {
  return bytes.length === resource.size && (await sha256(bytes)) === resource.sha256;
}
