/**
 * `site.json`, which `onnx-textgen site` writes: what a site consists of, and where.
 *
 * @typedef {object} Resource A file that the browser fetches once, and then keeps.
 * @property {string} url relative to the site, or absolute
 * @property {number} size bytes
 * @property {string} sha256 hexadecimal
 *
 * @typedef {"wasm" | "webgpu"} Device
 *
 * @typedef {object} Graph The graph of a device.
 * @property {string} graph its name in `files`
 * @property {Record<string, string>} data names in `files`, by the location that the graph gives for each file of weights
 *
 * @typedef {Partial<Record<"thinking" | "call", {open: string[], close: string[]}>>} Marks What the model writes around its thinking and its calls.
 *
 * @typedef {object} Site
 * @property {number} format_version
 * @property {string} made_by
 * @property {string} name
 * @property {string} precision of the weights
 * @property {string[]} prompts examples to begin with
 * @property {Marks} marks
 * @property {Record<string, Resource>} files the model's, by their names in its folder
 * @property {Record<Device, Graph>} graphs
 * @property {Graph | null} vision the graph that reads pictures
 * @property {Record<string, Resource & {package: string, licence: string}>} libraries
 */

export const FORMAT_VERSION = 2;

/** Names in `files` that every device needs, where the model has them. */
const TEXTS = ["manifest.json", "tokenizer.json", "chat_template.jinja"];

/**
 * Read `site.json`.
 * @returns {Promise<Site>}
 */
export async function readSite() {
  const answer = await fetch("site.json", { cache: "no-cache" });
  if (!answer.ok) throw new Error(`site.json is missing on the server (${answer.status}); publish the whole folder of the site`);
  const site = /** @type {Site} */ (await answer.json());
  if (site.format_version !== FORMAT_VERSION) {
    throw new Error("site.json is of another version than the page; publish the whole folder of the site again");
  }
  return site;
}

/**
 * The names of the files that a device needs: texts, graphs and weights.
 * @param {Site} site
 * @param {Device} device
 */
export function filesOf(site, device) {
  const { graph, data } = site.graphs[device];
  const vision = site.vision ? [site.vision.graph, ...Object.values(site.vision.data)] : [];
  return [...TEXTS.filter((name) => name in site.files), graph, ...new Set(Object.values(data)), ...vision];
}

/**
 * The libraries that a device needs, by what they are for.
 * @param {Device} device
 */
export const librariesOf = (device) => ["tokenizers", "jinja", "marked", `onnxruntime-${device}`, `onnxruntime-${device}-binary`];

/**
 * All that a browser fetches for a device.
 * @param {Site} site
 * @param {Device} device
 * @returns {Resource[]}
 */
export function resourcesOf(site, device) {
  const pick = (/** @type {Record<string, Resource>} */ from, /** @type {string} */ name) => {
    const found = from[name];
    if (!found) throw new Error(`site.json lists no ${name}; publish the whole folder of the site again`);
    return found;
  };
  return [...filesOf(site, device).map((name) => pick(site.files, name)), ...librariesOf(device).map((name) => pick(site.libraries, name))];
}
