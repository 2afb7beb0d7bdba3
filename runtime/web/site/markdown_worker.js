/**
 * Reads Markdown apart from the page, which a long text or a malicious one then cannot hold up.
 *
 * The first message is `{address, library}`: the site's, and the library that `site.json` lists. Every later one, `{text}`, is answered by
 * `{tokens}`, null where the library fails.
 */

import { importModule } from "./libraries.js";
import { Store } from "./store.js";

/** @import { Token } from "marked" */

/** @type {Promise<(text: string) => Token[]> | null} */
let lexer = null;

self.onmessage = async ({ data }) => {
  if ("library" in data) {
    lexer = new Store(data.address).read(data.library).then(importModule).then(({ lexer: found }) => found);
    lexer.catch(() => {}); // the texts stay plain
    return;
  }
  let tokens = null;
  try {
    tokens = [...(/** @type {any} */ (await lexer)(data.text))];
  } catch {
    // No library, or a text that is nested too deeply.
  }
  self.postMessage({ tokens });
};
