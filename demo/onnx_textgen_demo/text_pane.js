// Browser events of the text; Gradio runs this with its element and a function that reports events to Python.
// Presses and arrow keys select a token, whose position reaches Python as `SelectData.index`; the selected token stays in sight.

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
  await copyText(sheet().textContent);
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
};

// Follows the end of a growing text, unless the reader has scrolled up.
let place;
let reached = 0; // the last position that this scrolled to
new MutationObserver(() => {
  const [text, now] = [sheet(), element.querySelector("[aria-current]")];
  reached = now ? Math.min(reached, text.scrollHeight - text.clientHeight) : 0; // a new text may be shorter
  if (now?.dataset.place === place) return;
  place = now?.dataset.place;
  if (!now || (!now.nextElementSibling && text.scrollTop < reached)) return;
  const [frame, token] = [text.getBoundingClientRect(), now.getBoundingClientRect()];
  if (token.bottom > frame.bottom) text.scrollTop += token.bottom - frame.bottom + token.height;
  if (token.top < frame.top) text.scrollTop -= frame.top - token.top + token.height;
  reached = text.scrollTop;
}).observe(element, { childList: true, subtree: true, attributes: true, attributeFilter: ["aria-current"] });
