// What holds for the whole page.

// The address says what the page shows, as in "#tab=Chat&model=smollm2&chat=KEY", so that a reload and a bookmark show it again.
const shownInAddress = () => new URLSearchParams(location.hash.slice(1));
window.inAddress = (name) => shownInAddress().get(name);
window.keepInAddress = (name, value) => {
  const shown = shownInAddress();
  if (value) shown.set(name, value);
  else shown.delete(name);
  history.replaceState(history.state, "", `${location.pathname}${location.search}#${shown}`); // with the key of the tools
};
window.showTabOfAddress = () => {
  const tabs = [...document.querySelectorAll("button[role=tab]")];
  tabs.find((tab) => tab.textContent.trim() === inAddress("tab"))?.click();
};
addEventListener("hashchange", () => location.reload()); // somebody has typed another address

document.addEventListener("click", ({ target }) => {
  const tab = target.closest("button[role=tab]");
  if (tab) keepInAddress("tab", tab.textContent.trim());
  if (!target.closest("#fetch")) closeFetch();
});

window.copyText = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // over plain http from another machine there is no clipboard
    const focused = document.activeElement;
    const hidden = document.createElement("textarea");
    hidden.value = text;
    document.body.append(hidden);
    hidden.select();
    document.execCommand("copy");
    hidden.remove();
    focused?.focus();
  }
};

// The panel that fetches a model opens over the page, and closes when something else is pressed.
const closeFetch = () => document.querySelector("#fetch > button.open")?.click();
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") closeFetch();
});
