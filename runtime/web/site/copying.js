/** Buttons that copy a text. */

import { make } from "./view.js";

const SHOWN_MILLISECONDS = 1500;

/**
 * A button that copies what `textOf` returns when it is pressed, and says so.
 * @param {() => string} textOf
 * @param {string} name for those who do not see what it stands next to
 */
export function copyButton(textOf, name) {
  const button = make("button", { type: "button", class: "quiet copy", "aria-label": name }, "Copy");
  button.addEventListener("click", async () => {
    let said = "Copied";
    await navigator.clipboard.writeText(textOf()).catch(() => (said = "Not allowed"));
    button.textContent = said;
    setTimeout(() => (button.textContent = "Copy"), SHOWN_MILLISECONDS);
  });
  return button;
}
