// Pictures for the next message, `props.value`: data URLs. They are chosen, dropped on the tab, pasted, or taken with a phone's camera, and
// made small in the browser; this server gets no files.

const MOST = 8;
const LONGEST_EDGE = 768;
const QUALITY = 0.9;

const chooser = element.querySelector("input[type=file]");
const list = element.querySelector("ul");
const note = element.querySelector("[role=status]");
const pictures = () => props.value ?? [];
const tell = (text) => (note.textContent = text);

const draw = () => {
  list.replaceChildren(...pictures().map((url, place) => {
    const image = Object.assign(document.createElement("img"), { src: url, alt: `Picture ${place + 1}` });
    const remove = Object.assign(document.createElement("button"), { type: "button", className: "glyph glyph-close" });
    remove.setAttribute("aria-label", `Remove picture ${place + 1}`);
    remove.addEventListener("click", () => {
      props.value = pictures().filter((_, each) => each !== place);
      draw();
    });
    const item = document.createElement("li");
    item.append(image, remove);
    return item;
  }));
};
const small = async (file) => {
  const bitmap = await createImageBitmap(file); // turned as its EXIF data says
  const scale = Math.min(1, LONGEST_EDGE / Math.max(bitmap.width, bitmap.height));
  const size = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(side * scale)));
  const canvas = Object.assign(document.createElement("canvas"), { width: size[0], height: size[1] });
  const context = canvas.getContext("2d");
  context.fillStyle = "white";
  context.fillRect(0, 0, ...size);
  context.drawImage(bitmap, 0, 0, ...size);
  return canvas.toDataURL("image/jpeg", QUALITY);
};
const add = async (files) => {
  const images = [...files].filter((file) => file.type.startsWith("image/"));
  tell("");
  for (const file of images) {
    if (pictures().length === MOST) return tell(`A message has at most ${MOST} pictures.`);
    try {
      props.value = [...pictures(), await small(file)];
    } catch {
      tell(`${file.name || "This"} is no picture that this browser reads.`);
    }
  }
  draw();
};

const isOffered = () => element.checkVisibility();
element.querySelector("button").addEventListener("click", () => chooser.click());
chooser.addEventListener("change", async () => {
  await add(chooser.files);
  chooser.value = "";
});
document.addEventListener("paste", (event) => isOffered() && event.clipboardData.files.length && add(event.clipboardData.files));
const pane = document.querySelector("#chat-main");
pane?.addEventListener("dragover", (event) => isOffered() && event.preventDefault());
pane?.addEventListener("drop", (event) => {
  if (!isOffered() || !event.dataTransfer.files.length) return;
  event.preventDefault();
  add(event.dataTransfer.files);
});
watch("value", draw);
draw();
