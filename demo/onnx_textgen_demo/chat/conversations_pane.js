// The conversations in the browser's local storage; Gradio runs this with its element, `props`, and a function that reports events.
// `props.value` is the open conversation: Python sets it after each message. What is picked is reported as "select".
// Everything from storage or a file is untrusted: it is drawn as text, and Python checks it before it uses it.

const PREFIX = "onnx-textgen.chat.";
const OPEN = "onnx-textgen.open"; // of this tab of the browser
const MOST = 100; // conversations; the oldest are removed first
const LONGEST_FILE = 4_000_000; // bytes

const at = (selector) => element.querySelector(selector);
const button = (name) => at(`[data-does=${name}]`);
let problem = "";
const tell = (text) => {
  problem = text;
  draw();
};

// A kept conversation: { saved: milliseconds, name: what the reader called it, conversation: as Python wrote it }
const read = (key) => {
  try {
    const kept = JSON.parse(localStorage.getItem(PREFIX + key));
    return kept && typeof kept === "object" && kept.conversation ? kept : null;
  } catch {
    return null;
  }
};
const all = () => {
  let keys = [];
  try {
    keys = Object.keys(localStorage).filter((key) => key.startsWith(PREFIX)).map((key) => key.slice(PREFIX.length));
  } catch { /* the browser forbids storage */ }
  const kept = keys.map((key) => [key, read(key)]);
  for (const [key] of kept.filter(([, each]) => !each)) localStorage.removeItem(PREFIX + key);
  return kept.filter(([, each]) => each).sort(([, one], [, other]) => (Number(other.saved) || 0) - (Number(one.saved) || 0));
};
const write = (key, kept) => {
  for (;;) {
    try {
      localStorage.setItem(PREFIX + key, JSON.stringify(kept));
      return;
    } catch {
      const oldest = all().map(([each]) => each).filter((each) => each !== key).at(-1);
      if (!oldest) {
        problem = "This browser keeps no conversations: its storage is full or forbidden.";
        return;
      }
      localStorage.removeItem(PREFIX + oldest);
    }
  }
};
const remove = (key) => localStorage.removeItem(PREFIX + key);
const remember = (key) => {
  try {
    if (key) sessionStorage.setItem(OPEN, key);
    else sessionStorage.removeItem(OPEN);
  } catch { /* likewise */ }
};

const title = (kept) => String(kept.name || kept.conversation.title || "Conversation");
const opened = () => props.value?.key;

const agreed = new Map(); // by key: what this tab and the storage had in common last
let asked = null; // a conversation that Python was asked to show, until it comes back with as many messages
const isBusy = () => document.querySelector("#turns .turns")?.ariaBusy === "true";
let later = null; // what another tab changed too is merged when no answer grows here

const save = () => {
  const now = props.value;
  if (!now?.nodes?.length) return draw();
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

const open = (key) => {
  const kept = read(key);
  problem = "";
  if (!kept) return draw();
  remember(key);
  show(kept.conversation);
  showList(false);
};
const begin = () => {
  remember(null);
  trigger("clear");
  showList(false);
  if (innerWidth > 800) document.querySelector("#message textarea")?.focus(); // on a phone, its keyboard would cover the page
};

// The list.
const make = (tag, attributes, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};
const press = (made, action) => { made.addEventListener("click", action); return made; };

let drawn; // what the list shows: it is drawn only if that changes, because a press must not lose its button
const draw = () => {
  const list = at("nav ul");
  const shown = all();
  for (const name of ["json", "markdown"]) button(name).disabled = !props.value?.nodes?.length;
  at(".conversations-note").textContent = problem || (shown.length ? "" : "No conversations yet. They stay in this browser.");
  const now = JSON.stringify([opened(), shown.map(([key, kept]) => [key, title(kept)])]);
  if (now === drawn) return;
  const focused = list.contains(document.activeElement) && document.activeElement.getAttribute("aria-label");
  if (list.querySelector("input") && document.activeElement === list.querySelector("input")) return; // a name is being typed
  drawn = now;
  list.replaceChildren(...shown.map(([key, kept]) => row(key, kept)));
  if (focused) list.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
};
const row = (key, kept) => {
  const name = title(kept);
  const pick = press(make("button", { type: "button", class: "pick", title: name, "aria-label": name }, name), () => open(key));
  if (key === opened()) pick.setAttribute("aria-current", "true");
  const change = make("button", { type: "button", "aria-label": `Rename ${name}`, title: "Rename" }, "✎");
  const drop = make("button", { type: "button", "aria-label": `Delete ${name}`, title: "Delete" }, "✕");
  const made = make("li", {}, pick, change, drop);
  press(change, () => rename(key, kept, made));
  press(drop, () => {
    if (!drop.classList.contains("sure")) {
      drop.classList.add("sure");
      drop.textContent = "Delete?";
      drop.addEventListener("blur", () => {
        drop.classList.remove("sure");
        drop.textContent = "✕";
      });
      return;
    }
    remove(key);
    if (key === opened()) begin();
    draw();
  });
  return made;
};
const rename = (key, kept, made) => {
  const name = make("input", { type: "text", maxlength: 100, "aria-label": "Name of the conversation" });
  name.value = title(kept);
  const finish = (isKept) => {
    if (!name.isConnected) return;
    if (isKept && name.value.trim()) write(key, { ...read(key), name: name.value.trim() });
    name.remove();
    drawn = null;
    draw();
  };
  name.addEventListener("keydown", (event) => {
    if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    finish(event.key === "Enter");
  });
  name.addEventListener("blur", () => finish(true));
  made.replaceChildren(name);
  name.select();
};

// Files.
const messages = () => {
  const { nodes, leaf, system } = props.value;
  const path = [];
  for (let place = leaf; place >= 0 && path.length <= nodes.length; place = nodes[place].parent) path.unshift(nodes[place].message);
  return system?.trim() ? [{ role: "system", content: system }, ...path] : path;
};
const nameNow = () => title(read(opened()) ?? { conversation: props.value });
const download = (text, type, ending) => {
  const link = make("a", {
    href: URL.createObjectURL(new Blob([text], { type })),
    download: `${nameNow().replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60) || "conversation"}.${ending}`,
  });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
};
const asMarkdown = () => {
  const names = { system: "System", user: "You", assistant: "Model", tool: "Tool" };
  const parts = messages().map((each) => {
    const calls = (each.tool_calls ?? []).map((call) => `\`\`\`json\n${JSON.stringify(call.function, null, 2)}\n\`\`\``);
    return [`## ${names[each.role]}`, each.content, ...calls].filter(Boolean).join("\n\n");
  });
  return `# ${nameNow()}\n\n${parts.join("\n\n")}\n`;
};
at("input[type=file]").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  event.target.value = "";
  if (!file) return;
  if (file.size > LONGEST_FILE) return tell(`The file has ${file.size.toLocaleString("en")} bytes; at most ${LONGEST_FILE.toLocaleString("en")} are read.`);
  try {
    trigger("select", { conversation: JSON.parse(await file.text()), is_imported: true });
  } catch {
    tell("The file is no JSON; import one that this page exported.");
  }
});

// The buttons, and what they open.
const chat = () => element.closest("#chat");
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
  json: () => download(JSON.stringify({ title: nameNow(), messages: messages() }, null, 2), "application/json", "json"),
  markdown: () => download(asMarkdown(), "text/markdown", "md"),
  import: () => at("input[type=file]").click(),
};
element.addEventListener("click", (event) => actions[event.target.closest("[data-does]")?.dataset.does]?.());
document.addEventListener("keydown", (event) => {
  if (event.key.toLowerCase() === "o" && event.shiftKey && (event.ctrlKey || event.metaKey) && element.offsetParent !== null) {
    event.preventDefault();
    begin();
  }
  if (event.key !== "Escape" || element.offsetParent === null || event.defaultPrevented) return;
  if (chat().classList.contains("settings-open")) showSettings(false);
  else if (chat().classList.contains("list-open")) showList(false);
});
document.addEventListener("click", (event) => {
  if (event.target.closest("#chat-settings-close")) showSettings(false);
});

watch("value", save);
addEventListener("storage", follow);
addEventListener("pagehide", () => { if (later !== null) putBoth(); });
draw();
let before = null;
try {
  before = sessionStorage.getItem(OPEN);
} catch { /* the browser forbids storage */ }
if (before) open(before); // after a reload
