// What cannot be undone takes two presses of its button: the first one asks in the button's place.
// Gives whether this press is the second one. Escape, or leaving the button, takes the question back. `spoken`: for screen readers.
const isPressedTwice = (button, question, spoken = question) => {
  if (button.classList.contains("sure")) return true;
  const name = button.ariaLabel;
  const label = (text, aria) => {
    button.textContent = text;
    button.ariaLabel = aria;
  };
  const back = () => {
    button.classList.remove("sure");
    label("", name);
    button.removeEventListener("blur", back);
    button.removeEventListener("keydown", escape);
  };
  const escape = (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    back();
  };
  button.classList.add("sure");
  label(question, spoken);
  button.addEventListener("blur", back);
  button.addEventListener("keydown", escape);
  button.focus(); // not every browser does it after a press
  return false;
};
