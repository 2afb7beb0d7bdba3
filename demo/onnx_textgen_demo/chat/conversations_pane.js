// The open conversation, `props.value`: Python sets it after each message, and it is kept; what is picked is reported as "select".
// And the buttons and keys of the pane.

const opened = () => props.value?.key;

const agreed = new Map(); // by key: what this tab and the storage had in common last
let asked = null; // a conversation that Python was asked to show, until it comes back with as many messages
const isBusy = () => document.querySelector("#turns .turns")?.ariaBusy === "true";
let later = null; // what another tab changed too is merged when no answer grows here

const save = () => {
  const now = props.value;
  if (isEmpty(now)) {
    if (now?.nodes?.length) forget(now.key); // its last message was deleted
    return draw();
  }
  remember(now.key);
  if (asked?.key === now.key && asked.nodes?.length === now.nodes.length) {
    agreed.set(now.key, asked);
    asked = null;
  }
  const kept = keptOf(now.key);
  if (kept && !hasSameMessages(kept, now) && !hasSameMessages(kept, agreed.get(now.key) ?? kept)) {
    clearTimeout(later);
    later = setTimeout(settle, 300);
  } else {
    if (!isSame(kept, now)) put(now);
    agreed.set(now.key, now);
  }
  draw();
};
const forget = (key) => {
  remove(key);
  agreed.delete(key);
  remember(null);
};
const keptOf = (key) => {
  const kept = read(key)?.conversation;
  return Array.isArray(kept?.nodes) ? kept : null;
};
const put = (conversation) => {
  write(conversation.key, { saved: Date.now(), name: read(conversation.key)?.name, conversation });
  for (const [key] of all().slice(MOST)) if (key !== conversation.key) remove(key);
};
const settle = () => {
  if (isBusy() || asked) {
    later = setTimeout(settle, 300);
    return;
  }
  const both = putBoth();
  if (both && hasSameMessages(both, props.value)) agreed.set(both.key, both);
  else if (both) show(both);
};
const putBoth = () => {
  const now = props.value;
  const [base, kept] = [agreed.get(now?.key), keptOf(now?.key)];
  later = null;
  if (!base || !kept) return null;
  const both = merged(base, kept, now);
  put(both);
  return both;
};
const show = (conversation) => {
  asked = conversation;
  trigger("select", { conversation, is_imported: false });
};

// Another tab of the browser changed the storage: its messages appear here, unless the reader is at work.
const follow = ({ key }) => {
  draw();
  const now = props.value;
  if (!now?.nodes?.length || key !== PREFIX + now.key) return;
  if (asked || later !== null || isBusy() || document.querySelector("#turns .editor, #chat.settings-open")) return;
  const kept = keptOf(now.key);
  if (!kept || hasSameMessages(kept, now) || now.leaf >= kept.nodes.length) return;
  show({ ...kept, leaf: latestThrough(kept.nodes, now.leaf) });
};

const open = (key, place) => { // place: of a message that is to be seen, whatever branch was shown last
  const conversation = read(key)?.conversation;
  problem = "";
  remember(conversation ? key : null);
  if (!conversation) return draw();
  const isSeen = place === undefined || pathOf(conversation).includes(place);
  show(isSeen ? conversation : { ...conversation, leaf: latestThrough(conversation.nodes, place) });
  showList(false);
};
const begin = () => {
  remember(null);
  trigger("clear");
  endSearch();
  showList(false);
  if (!isNarrow()) field()?.focus();
};

// The buttons, and what they open.
const chat = () => element.closest("#chat");
const isShown = () => element.offsetParent !== null;
const isNarrow = () => innerWidth <= 800; // a phone: the list is folded, and focus in a field brings up a keyboard over the page
const field = () => document.querySelector("#message textarea");
const keys = at("dialog");
const showList = (shown) => {
  chat().classList.toggle("list-open", shown);
  button("list").setAttribute("aria-expanded", shown);
};
const showSettings = (shown) => {
  chat().classList.toggle("settings-open", shown);
  button("settings").setAttribute("aria-expanded", shown);
  (shown ? document.querySelector("#chat-settings textarea") : button("settings")).focus();
};
const actions = {
  list: () => showList(!chat().classList.contains("list-open")),
  new: begin,
  settings: () => showSettings(!chat().classList.contains("settings-open")),
  keys: () => keys.showModal(),
  "keys-close": () => keys.close(),
  json: () => download(JSON.stringify({ title: nameNow(), messages: messages() }, null, 2), "application/json", "json"),
  markdown: () => download(asMarkdown(), "text/markdown", "md"),
  import: () => at("input[type=file]").click(),
  search: () => {
    if (isNarrow()) showList(true);
    search.focus();
    search.select();
  },
  rename: () => {
    if (isNarrow()) showList(true);
    at("[aria-current] ~ .glyph-edit")?.click();
  },
  field: () => field()?.focus(),
};
element.addEventListener("click", (event) => actions[event.target.closest("[data-does]")?.dataset.does]?.());
document.addEventListener("click", (event) => {
  if (event.target.closest("#chat-settings-close")) showSettings(false);
});

// Keys, as `conversations_pane.py` lists them.
const SHORTCUTS = { "shift+o": "new", k: "search", "shift+e": "rename", ".": "settings", "/": "keys" }; // with Ctrl, or the command key
const shortcutOf = (event) => {
  const isText = event.target.closest?.("input, textarea, select, [contenteditable]");
  const key = event.key?.toLowerCase() ?? ""; // none where the browser fills in a field
  if (event.ctrlKey || event.metaKey) return event.altKey ? null : SHORTCUTS[event.shiftKey && key !== "/" ? `shift+${key}` : key];
  if (key === "?" && !isText) return "keys";
  return key === "escape" && event.shiftKey ? "field" : null;
};
document.addEventListener("keydown", (event) => {
  if (!isShown() || event.defaultPrevented || keys.open) return;
  const shortcut = shortcutOf(event);
  const isOpen = (name) => event.key === "Escape" && chat().classList.contains(name);
  if (shortcut) actions[shortcut]();
  else if (isOpen("settings-open")) showSettings(false);
  else if (isOpen("list-open")) showList(false);
  else return;
  event.preventDefault();
});

watch("value", save);
addEventListener("storage", follow);
addEventListener("pagehide", () => { if (later !== null) putBoth(); });
draw();
if (inAddress("chat")) open(inAddress("chat"));
