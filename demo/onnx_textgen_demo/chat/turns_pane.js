// Browser events of the messages; Gradio runs this with its element and a function that reports events to Python.
// Presses of buttons with `data-does` are reported under that name, with the index of the message; edited texts as "edit", or as
// "input" if they are of an answer.

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

const report = (name, button) => {
  if (isBusy()) return;
  remember(button);
  trigger(name, { index: Number(button.dataset.index), value: "" });
};
const actions = {
  edit: (button) => edit(button.closest(".turn")),
  delete: (button) => { if (isPressedTwice(button, button.dataset.asks)) report("delete", button); },
  retry: (button) => {
    remember(button);
    ask("retry", { index: Number(button.dataset.index) });
  },
  play: (button) => ask("play", { index: Number(button.dataset.index) }),
  decide: (button) => {
    remember(button);
    const { index, call, decision } = button.dataset;
    ask("apply", { index: Number(index), call: Number(call), decision });
  },
};
element.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const { does, says } = button.dataset;
  if (button.matches(".copy")) copy(button);
  else if (says) ask("submit", { text: says });
  else if (does) (actions[does] ?? report.bind(null, does))(button);
});

// A press draws the messages anew: the same button of the message at the same place gets the focus again, or the next that is there.
let pressed = null;
const remember = (button) => {
  pressed = { button, place: [...element.querySelectorAll(".turn")].indexOf(button.closest(".turn")), name: button.ariaLabel };
};
const focusAfterPress = () => {
  if (!pressed || pressed.button.isConnected || isBusy()) return;
  const turn = element.querySelectorAll(".turn")[pressed.place];
  const same = turn?.querySelector(`button:enabled[aria-label="${CSS.escape(pressed.name)}"]`);
  const next = element.querySelector("[data-does=decide]") ?? turn?.querySelector(".pager button:enabled");
  pressed = null;
  if (document.activeElement === document.body) (same ?? next ?? scroller).focus();
};

const copy = async (button) => {
  await copyText(button.dataset.text ?? button.closest(".code").querySelector("code").textContent);
  if (button.matches(".copied")) return;
  const name = button.ariaLabel;
  button.classList.add("copied");
  button.ariaLabel = "Copied";
  setTimeout(() => {
    button.classList.remove("copied");
    button.ariaLabel = name;
  }, 1500);
};

// A message is edited at its place.
const edit = (turn) => {
  if (!turn || turn.querySelector(".editor") || isBusy()) return;
  const isAnswer = turn.matches(".assistant");
  const editor = document.createElement("form");
  editor.className = "editor";
  editor.innerHTML =
    '<textarea aria-label="Message" rows="3"></textarea><div><button type="submit"></button><button type="button">Cancel</button></div>';
  editor.querySelector("[type=submit]").textContent = isAnswer ? "Save" : "Send"; // the model does not answer its own answer
  const [text, cancel] = [editor.querySelector("textarea"), editor.querySelector("[type=button]")];
  const close = () => {
    editor.remove();
    turn.classList.remove("edited");
    field()?.focus();
  };
  editor.addEventListener("submit", (event) => {
    event.preventDefault();
    const changed = { index: Number(turn.dataset.node), text: text.value };
    if (text.value.trim() && isAnswer) trigger("input", changed);
    else if (text.value.trim()) ask("edit", changed);
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
  follows = false; // the editor is what is to be seen
  turn.append(editor);
  turn.classList.add("edited");
  text.value = turn.querySelector(".copy[data-text]").dataset.text;
  text.style.height = `${Math.min(text.scrollHeight + 2, scroller.clientHeight - 80)}px`;
  text.focus();
  editor.scrollIntoView({ block: "nearest" });
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
  const isOver = document.querySelector("#chat.settings-open, #chat.list-open, #chat dialog[open]"); // which the key closes
  if (event.key === "Escape" && !event.shiftKey && !isOver) document.querySelector("#chat-stop:enabled")?.click();
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
  drawFormulas(scroller);
  focusAfterPress();
  if (follows) scroller.scrollTop = scroller.scrollHeight;
}).observe(scroller, { childList: true, subtree: true, characterData: true, attributes: true, attributeFilter: ["open", "data-node", "data-key"] });
