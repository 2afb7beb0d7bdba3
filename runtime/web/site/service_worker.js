/**
 * Keeps the page itself in the browser, so that the site works without a network, and gives it the headers for threads.
 *
 * The model and the libraries are kept by `store.js`. `onnx-textgen site` writes `self.SHELL` above this text: a version, and the files
 * of the page. A new version is fetched beside the old one, and takes over when the page asks for it or was closed everywhere.
 */

/** @typedef {ServiceWorkerGlobalScope & {SHELL: {version: string, files: string[]}}} Scope */

const scope = /** @type {Scope} */ (/** @type {unknown} */ (self));
const site = scope.registration.scope;
const family = `onnx-textgen page of ${site} `;
const cacheName = family + scope.SHELL.version;
const paths = new Set(scope.SHELL.files.map((file) => new URL(file, site).pathname));
const page = new URL("index.html", site).pathname;

/** With both, a browser lets a page share memory among threads. Hosts such as GitHub Pages cannot send them. */
const ISOLATION = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" };

scope.addEventListener("install", (event) => {
  event.waitUntil(
    caches.open(cacheName).then((cache) => cache.addAll(scope.SHELL.files.map((file) => new Request(new URL(file, site), { cache: "reload" })))),
  );
});

scope.addEventListener("activate", (event) => {
  const isOld = (/** @type {string} */ each) => each.startsWith(family) && each !== cacheName;
  const clean = async () => Promise.all((await caches.keys()).filter(isOld).map((each) => caches.delete(each)));
  event.waitUntil(Promise.all([clean(), scope.clients.claim()]));
});

scope.addEventListener("message", (event) => {
  if (event.data === "take over") event.waitUntil(scope.skipWaiting());
});

scope.addEventListener("fetch", (event) => {
  const url = new URL(event.request.url);
  if (event.request.method !== "GET" || url.origin !== location.origin) return;
  const path = url.pathname === new URL(site).pathname ? page : url.pathname;
  if (paths.has(path)) event.respondWith(answer(path, event.request));
});

/**
 * A file of the page, with the headers for threads.
 * @param {string} path
 * @param {Request} request
 */
async function answer(path, request) {
  const cache = await caches.open(cacheName);
  const found = (await cache.match(path)) ?? (await fetch(request));
  const headers = new Headers(found.headers);
  for (const [key, value] of Object.entries(ISOLATION)) headers.set(key, value);
  return new Response(found.body, { status: found.status, statusText: found.statusText, headers });
}
