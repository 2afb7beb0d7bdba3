// The list of conversations, and the search over their titles and texts.

const make = (tag, attributes, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};
const press = (made, action) => { made.addEventListener("click", action); return made; };
const glyphButton = (picture, does, name) =>
  make("button", { type: "button", class: `glyph glyph-${picture}`, "aria-label": `${does} ${name}`, title: does });

// Search: a conversation is found if its title and its messages, of any version, have all words.
const search = at("input[type=search]");
const textsOf = ({ conversation }) =>
  (Array.isArray(conversation.nodes) ? conversation.nodes : []).map(({ message }) => (typeof message?.content === "string" ? message.content : ""));
const found = ([key, kept]) => {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const [name, texts] = [title(kept).toLowerCase(), textsOf(kept)];
  const places = words.map((word) => texts.findIndex((text) => text.toLowerCase().includes(word)));
  if (!words.every((word, number) => name.includes(word) || places[number] >= 0)) return null;
  const number = words.findIndex((word) => !name.includes(word)); // what the title does not explain is shown
  return number < 0 ? { key, kept } : { key, kept, place: places[number], excerpt: excerptOf(texts[places[number]], words[number]) };
};
const excerptOf = (text, word) => {
  const start = Math.max(0, text.toLowerCase().indexOf(word) - 24);
  return `${start ? "…" : ""}${text.slice(start, start + 120).replace(/\s+/g, " ")}`;
};

let drawn; // what the list shows: it is drawn only if that changes, because a press must not lose its button
const draw = () => {
  const list = at("nav ul");
  const kept = all();
  const shown = kept.map(found).filter(Boolean);
  for (const name of ["json", "markdown"]) button(name).disabled = isEmpty(props.value);
  search.hidden = !kept.length;
  at(".conversations-note").textContent = problem || noteOf(shown.length, kept.length);
  const now = JSON.stringify([opened(), shown.map((each) => [each.key, title(each.kept), each.excerpt])]);
  if (now === drawn) return;
  const focused = list.contains(document.activeElement) && document.activeElement.getAttribute("aria-label");
  if (list.querySelector("input") && document.activeElement === list.querySelector("input")) return; // a name is being typed
  drawn = now;
  list.replaceChildren(...shown.map(row));
  if (focused) list.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
};
const noteOf = (found, count) => {
  if (!count) return "No conversations yet. They stay in this browser.";
  if (!search.value.trim()) return "";
  return found ? `${found} of ${count} conversations` : `No conversation has “${search.value.trim()}”.`;
};
const row = ({ key, kept, place, excerpt }) => {
  const name = title(kept);
  const label = excerpt ? `${name}: ${excerpt}` : name;
  const pick = press(make("button", { type: "button", class: "pick", title: name, "aria-label": label }, name), () => open(key, place));
  if (excerpt) pick.append(make("small", {}, excerpt));
  if (key === opened()) pick.setAttribute("aria-current", "true");
  const [change, drop] = [glyphButton("edit", "Rename", name), glyphButton("delete", "Delete", name)];
  const made = make("li", { "data-key": key }, pick, change, drop);
  press(change, () => rename(key, kept, made));
  press(drop, () => {
    if (!isPressedTwice(drop, "Delete?", `Delete ${name}?`)) return;
    remove(key);
    if (key === opened()) begin();
    draw();
  });
  return made;
};
const rename = (key, kept, made) => {
  const name = make("input", { type: "text", maxlength: 100, "aria-label": "Name of the conversation" });
  name.value = title(kept);
  let isFinished = false; // the field loses the focus when it is removed
  const finish = (isKept) => {
    if (isFinished) return;
    isFinished = true;
    if (isKept && name.value.trim()) write(key, { ...read(key), name: name.value.trim() });
    const hadFocus = document.activeElement === name;
    name.remove();
    drawn = null;
    draw();
    if (hadFocus) at(`li[data-key="${CSS.escape(key)}"] .pick`)?.focus();
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

// Keys: arrows go through the list, Enter opens the first that was found, Escape ends the search.
const endSearch = () => {
  search.value = "";
  draw();
};
search.addEventListener("input", draw);
at("nav").addEventListener("keydown", (event) => {
  const stops = [search, ...element.querySelectorAll(".pick")];
  const place = stops.indexOf(event.target);
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (place < 0 || event.isComposing) return;
  if (step) stops[place + step]?.focus();
  else if (event.target === search && event.key === "Enter") stops[1]?.click();
  else if (event.target === search && event.key === "Escape" && search.value) endSearch();
  else return;
  event.preventDefault();
});
