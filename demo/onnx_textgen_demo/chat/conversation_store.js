// The conversations in the browser's local storage, as { saved: milliseconds, name: what the reader called it, conversation: as
// Python wrote it }. Everything there is untrusted: it is drawn as text, and Python checks it before it uses it.

const PREFIX = "onnx-textgen.chat.";
const MOST = 100; // conversations; the oldest are removed first

const at = (selector) => element.querySelector(selector);
const button = (name) => at(`[data-does=${name}]`);
let problem = "";
const tell = (text) => {
  problem = text;
  draw();
};

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
        tell("This browser keeps no conversations: its storage is full or forbidden.");
        return;
      }
      localStorage.removeItem(PREFIX + oldest);
    }
  }
};
const remove = (key) => localStorage.removeItem(PREFIX + key);
const remember = (key) => keepInAddress("chat", key);

const title = (kept) => String(kept.name || kept.conversation.title || "Conversation");
const isDeleted = (message) => message?.role === "deleted";
const isEmpty = (conversation) => !conversation?.nodes?.some(({ message }) => !isDeleted(message));
