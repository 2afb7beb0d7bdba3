// Browser events of the messages; Gradio runs this with its element and a function that reports events to Python.
// Presses of buttons with `data-does` are reported under that name, with the index of the message; edited texts as "edit".

const field = () => document.querySelector("#message textarea");
const turns = () => element.querySelector(".turns");
const isShown = () => element.offsetParent !== null;
const scroller = element.closest("#messages"); // around the messages and the answer that grows
scroller.tabIndex = 0; // for the arrow keys
scroller.role = "group";
scroller.ariaLabel = "Conversation";
const isBusy = () => turns()?.ariaBusy === "true";
const ask = (name, data) => { // what the model will answer: the answer's first frame may take a while
  if (isBusy()) return;
  turns().ariaBusy = "true";
  trigger(name, data);
};

element.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.matches(".copy")) copy(button);
  else if (button.dataset.says) ask("submit", { text: button.dataset.says });
  else if (button.dataset.does === "edit") edit(button.closest(".turn"));
  else if (button.dataset.does === "decide") decide(button.dataset);
  else if (button.dataset.does === "retry") ask("retry", { index: Number(button.dataset.index) });
  else if (button.dataset.does) trigger(button.dataset.does, { index: Number(button.dataset.index), value: "" });
});

// A decision takes its buttons away: the next ones get the focus, or the conversation.
let decided = false;
const decide = ({ index, call, decision }) => {
  decided = true;
  ask("apply", { index: Number(index), call: Number(call), decision });
};
const focusAfterDecision = () => {
  if (!decided || isBusy()) return;
  decided = false;
  if (document.activeElement === document.body) (element.querySelector("[data-does=decide]") ?? scroller).focus();
};

const copy = async (button) => {
  const text = button.dataset.text ?? button.closest(".code").querySelector("code").textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch { // over plain http from another machine there is no clipboard
    const hidden = document.createElement("textarea");
    hidden.value = text;
    document.body.append(hidden);
    hidden.select();
    document.execCommand("copy");
    hidden.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
};

// A message is edited at its place.
const edit = (turn) => {
  if (!turn || turn.querySelector(".editor") || isBusy()) return;
  const said = turn.querySelector(".said");
  const editor = document.createElement("form");
  editor.className = "editor";
  editor.innerHTML =
    '<textarea aria-label="Message" rows="3"></textarea><div><button type="submit">Send</button><button type="button">Cancel</button></div>';
  const [text, cancel] = [editor.querySelector("textarea"), editor.querySelector("[type=button]")];
  const close = () => {
    editor.remove();
    turn.classList.remove("edited");
    field()?.focus();
  };
  editor.addEventListener("submit", (event) => {
    event.preventDefault();
    if (text.value.trim()) ask("edit", { index: Number(turn.dataset.node), text: text.value });
    close();
  });
  editor.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey) editor.requestSubmit();
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  cancel.addEventListener("click", close);
  turn.append(editor);
  turn.classList.add("edited");
  text.value = said.textContent;
  text.focus();
};

// One answer at a time: Enter waits for its end, and the text stays in the field.
document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.target !== field() || !isBusy()) return;
  event.preventDefault();
  event.stopPropagation();
}, true);

// Keys: Escape stops an answer, arrow up in the empty field edits the last message.
document.addEventListener("keydown", (event) => {
  if (!isShown() || event.defaultPrevented) return;
  const isInDrawer = document.querySelector("#chat.settings-open, #chat.list-open"); // which the key closes
  if (event.key === "Escape" && !isInDrawer) document.querySelector("#chat-stop:enabled")?.click();
  if (event.key === "ArrowUp" && event.target === field() && !field().value) {
    const last = [...element.querySelectorAll(".turn.user")].at(-1);
    if (!last) return;
    event.preventDefault();
    edit(last);
  }
});

// A fold stays as the reader left it while the answer grows.
const folds = new Map();
const nameOf = (fold) =>
  [turns().dataset.key, fold.closest(".turn").dataset.node, [...fold.parentElement.children].indexOf(fold)].join(" ");
scroller.addEventListener("click", (event) => {
  const fold = event.target.closest("summary")?.parentElement;
  if (fold) folds.set(nameOf(fold), !fold.open);
});

// Follows the end of a growing answer, unless the reader has scrolled up.
let follows = true;
let last; // the conversation and its last message
scroller.addEventListener("scroll", () => {
  follows = scroller.scrollHeight - scroller.clientHeight - scroller.scrollTop < 60;
});
new MutationObserver(() => {
  for (const fold of scroller.querySelectorAll("details")) {
    const isOpen = folds.get(nameOf(fold));
    if (isOpen !== undefined && fold.open !== isOpen) fold.open = isOpen;
  }
  const now = `${turns()?.dataset.key} ${[...scroller.querySelectorAll(".turn")].at(-1)?.dataset.node}`;
  if (now !== last) follows = true;
  last = now;
  focusAfterDecision();
  if (follows) scroller.scrollTop = scroller.scrollHeight;
}).observe(scroller, { childList: true, subtree: true, characterData: true, attributes: true, attributeFilter: ["open", "data-node", "data-key"] });
