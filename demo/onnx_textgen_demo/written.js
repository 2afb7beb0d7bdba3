// What the text answers to in the browser; Gradio runs this with its element, and with what reports events to Python.
// Presses and arrow keys choose a token, whose place reaches Python as `SelectData.index`; the one that is looked at stays in sight.

const sheet = () => element.querySelector(".sheet");
const choose = (token) => token && trigger("select", { index: Number(token.dataset.place), value: "" });

element.addEventListener("click", (event) => {
  const button = event.target.closest(".copy");
  if (button) copy(button);
  else if (getSelection().isCollapsed) choose(event.target.closest(".token"));
});

element.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const now = element.querySelector("[aria-current]");
  if (!step || !now) return;
  event.preventDefault();
  choose(element.querySelector(`[data-place="${Number(now.dataset.place) + step}"]`));
});

const copy = async (button) => {
  try {
    await navigator.clipboard.writeText(sheet().textContent);
  } catch { // a page that is reached by http from another machine has no clipboard
    getSelection().selectAllChildren(sheet());
    document.execCommand("copy");
    getSelection().empty();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
};

// The end of a text that is being written is followed, unless a person has scrolled up to read.
let place;
let reached = 0; // where this scrolled to
new MutationObserver(() => {
  const [text, now] = [sheet(), element.querySelector("[aria-current]")];
  reached = now ? Math.min(reached, text.scrollHeight - text.clientHeight) : 0; // another text may be shorter
  if (now?.dataset.place === place) return;
  place = now?.dataset.place;
  if (!now || (!now.nextElementSibling && text.scrollTop < reached)) return;
  const [frame, token] = [text.getBoundingClientRect(), now.getBoundingClientRect()];
  if (token.bottom > frame.bottom) text.scrollTop += token.bottom - frame.bottom + token.height;
  if (token.top < frame.top) text.scrollTop -= frame.top - token.top + token.height;
  reached = text.scrollTop;
}).observe(element, { childList: true, subtree: true, attributes: true, attributeFilter: ["aria-current"] });
