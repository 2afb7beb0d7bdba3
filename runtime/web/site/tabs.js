/** Tabs by the pattern of the ARIA Authoring Practices: arrow keys go from tab to tab. */

import { get } from "./view.js";

export class Tabs {
  /** @param {HTMLElement} list the element with the role `tablist` */
  constructor(list) {
    this.list = list;
    list.addEventListener("click", (event) => {
      const tab = event.target instanceof Element ? event.target.closest("[role=tab]") : null;
      if (tab instanceof HTMLElement) this.open(tab);
    });
    list.addEventListener("keydown", (event) => {
      const tabs = this.visible();
      const now = tabs.findIndex((tab) => tab.getAttribute("aria-selected") === "true");
      const places = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: tabs.length - 1 };
      const place = places[/** @type {keyof typeof places} */ (event.key)];
      const tab = place === undefined ? undefined : tabs.at(place % tabs.length);
      if (!tab) return;
      event.preventDefault();
      this.open(tab);
      tab.focus();
    });
  }

  /** The tabs that can be opened. */
  visible() {
    return [...this.list.querySelectorAll("[role=tab]")].filter((tab) => tab instanceof HTMLElement && !tab.hidden).map((tab) => /** @type {HTMLElement} */ (tab));
  }

  /** @param {HTMLElement} tab */
  open(tab) {
    for (const each of this.visible()) {
      const isOpen = each === tab;
      each.setAttribute("aria-selected", String(isOpen));
      each.tabIndex = isOpen ? 0 : -1;
      get(each.getAttribute("aria-controls") ?? "", HTMLElement).hidden = !isOpen;
    }
  }
}
