// Browser events of the segments: a time plays the sound from there, and the segment that is heard is marked.

const player = () => document.querySelector("#sound audio");

element.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (button?.dataset.start) {
    player().currentTime = Number(button.dataset.start);
    player().play();
  }
  if (!button?.classList.contains("copy")) return;
  await copyText([...element.querySelectorAll("li span")].map((each) => each.textContent).join("\n"));
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy the text"; }, 1500);
});

document.addEventListener("timeupdate", ({ target }) => {
  if (target !== player()) return;
  for (const button of element.querySelectorAll("[data-start]")) {
    const isHeard = !target.paused && target.currentTime >= button.dataset.start && target.currentTime < button.dataset.end;
    button.parentElement.toggleAttribute("data-heard", isHeard);
  }
}, true); // events of media do not bubble
