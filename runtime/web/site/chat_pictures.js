/** The pictures of the next message: chosen, pasted or dropped, and shown until it is sent. */

import { firstLine } from "../textgen/errors.js";
import { get, make } from "./view.js";

/** @import { Pixels } from "./model_worker.js" */

/** Pixels of a picture; a larger one is made smaller first, as the page holds four bytes for each. */
const MOST_PIXELS = 2 ** 22;

/** @typedef {{ pixels: Pixels, url: string }} Chosen a picture, and an address for an element that shows it */

export class ChatPictures {
  /** @param {(problem: string) => void} fail tells why a file could not be read */
  constructor(fail) {
    this.fail = fail;
    /** @type {Chosen[]} */
    this.chosen = [];
    this.shown = get("pictures", HTMLElement);
    this.button = get("add-picture", HTMLButtonElement);
    this.files = get("picture-files", HTMLInputElement);
    this.button.addEventListener("click", () => this.files.click());
    this.files.addEventListener("change", () => {
      void this.add([...(this.files.files ?? [])]);
      this.files.value = "";
    });
    const chat = get("chat", HTMLElement);
    chat.addEventListener("paste", (event) => this.take(event, event.clipboardData));
    chat.addEventListener("dragover", (event) => event.preventDefault());
    chat.addEventListener("drop", (event) => this.take(event, event.dataTransfer));
  }

  /** Whether the model reads pictures. @param {boolean} reads */
  offer(reads) {
    this.button.hidden = !reads;
  }

  /** Add the pictures of a paste or a drop; other content goes its usual way. @param {Event} event @param {DataTransfer | null} given */
  take(event, given) {
    const files = [...(given?.files ?? [])].filter(({ type }) => type.startsWith("image/"));
    if (!files.length || this.button.hidden) return;
    event.preventDefault();
    void this.add(files);
  }

  /** @param {readonly File[]} files */
  async add(files) {
    for (const file of files) {
      try {
        this.chosen.push({ pixels: await pixelsOf(file), url: URL.createObjectURL(file) });
      } catch (error) {
        this.fail(`${file.name} cannot be read as a picture (${firstLine(error)}); take a PNG, JPEG or WebP`);
      }
    }
    this.show();
  }

  show() {
    this.shown.replaceChildren(
      ...this.chosen.map((each, place) => {
        const remove = make("button", { type: "button", class: "quiet", "aria-label": `Remove picture ${place + 1}` }, "×");
        remove.addEventListener("click", () => {
          this.chosen.splice(place, 1);
          this.show();
        });
        return make("span", { class: "picture" }, pictureView(each.url), remove);
      }),
    );
    this.shown.hidden = !this.chosen.length;
  }

  /** The pictures for a message that is sent now. */
  taken() {
    const taken = this.chosen;
    this.chosen = [];
    this.show();
    return taken;
  }
}

/** An element that shows a picture. @param {string} url */
export const pictureView = (url) => make("img", { src: url, alt: "Your picture" });

/**
 * The pixels of a file, turned as it says; what is transparent is white.
 * @param {Blob} file
 * @returns {Promise<Pixels>}
 */
async function pixelsOf(file) {
  const bitmap = await createImageBitmap(file, { imageOrientation: "from-image" });
  const scale = Math.min(1, Math.sqrt(MOST_PIXELS / (bitmap.width * bitmap.height)));
  const [width, height] = [bitmap.width, bitmap.height].map((size) => Math.max(1, Math.floor(size * scale)));
  const canvas = new OffscreenCanvas(Number(width), Number(height));
  const context = canvas.getContext("2d");
  if (!context) throw new Error("this browser has no canvas");
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  return { data, width: canvas.width, height: canvas.height };
}
