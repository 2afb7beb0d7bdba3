/** The pictures of the next message: chosen, pasted or dropped, and shown until it is sent. */

import { firstLine } from "../textgen/errors.js";
import { get, make } from "./view.js";

/** @import { Pixels } from "./model_worker.js" */

/** Pixels of a picture; a larger one is made smaller first, as the page holds four bytes for each. */
const MOST_PIXELS = 2 ** 22;

/** @typedef {{ pixels: Pixels, url: string, name: string }} Chosen a picture, and an address for an element that shows it */

export class ChatPictures {
  /**
   * @param {(problem: string) => void} fail tells why a file could not be read
   * @param {() => void} changed called when files are being read, and when they were
   */
  constructor(fail, changed) {
    this.fail = fail;
    this.changed = changed;
    /** Files that are being read; a message waits for them. */
    this.reading = 0;
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
    chat.addEventListener("paste", (event) => {
      const { clipboardData: given } = event;
      // What office programs copy is text, and a picture of it.
      if (!this.button.hidden && given?.files.length && !given.types.includes("text/plain")) this.take(event, given);
    });
    chat.addEventListener("dragover", (event) => {
      if (event.dataTransfer?.types.includes("Files")) event.preventDefault(); // else the browser would open a file that is dropped
    });
    chat.addEventListener("drop", (event) => {
      if (event.dataTransfer?.files.length) this.take(event, event.dataTransfer);
    });
  }

  /** Whether the model reads pictures. @param {boolean} reads */
  offer(reads) {
    this.button.hidden = !reads;
  }

  /** Add the pictures among pasted or dropped files, instead of what the browser would do. @param {Event} event @param {DataTransfer} given */
  take(event, given) {
    event.preventDefault();
    if (!this.button.hidden) void this.add([...given.files].filter(({ type }) => type.startsWith("image/")));
  }

  /** @param {readonly File[]} files */
  async add(files) {
    this.reading++;
    this.changed();
    for (const file of files) {
      try {
        const pixels = await pixelsOf(file);
        this.chosen.push({ pixels, url: URL.createObjectURL(file), name: file.name });
        this.show();
      } catch (error) {
        this.fail(`${file.name} cannot be read as a picture (${firstLine(error)}); take a PNG, JPEG or WebP`);
      }
    }
    this.reading--;
    this.changed();
  }

  show() {
    this.shown.replaceChildren(
      ...this.chosen.map((each, place) => {
        const remove = make("button", { type: "button", class: "quiet", "aria-label": `Remove picture ${place + 1}` }, "×");
        remove.addEventListener("click", () => {
          for (const { url } of this.chosen.splice(place, 1)) URL.revokeObjectURL(url);
          this.show();
          this.button.focus();
        });
        return make("span", { class: "picture" }, pictureView(each), remove);
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

/** An element that shows a picture. @param {Chosen} picture */
export const pictureView = ({ url, name }) => make("img", { src: url, alt: name });

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
