/** SHA-256 by the Web Crypto API, which browsers have in secure contexts only: https, or localhost. */

import { PackageError } from "../errors.js";

/** The digest of bytes, hexadecimal. @param {Uint8Array<ArrayBuffer>} bytes */
export async function sha256(bytes) {
  if (!globalThis.crypto?.subtle) {
    throw new PackageError(
      "files cannot be checked here: the browser computes digests only on pages of https or localhost; open it so",
    );
  }
  const digest = await crypto.subtle.digest("SHA-256", bytes);
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
