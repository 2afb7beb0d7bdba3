// Draws formulas with the KaTeX that Gradio's page carries, which is loaded with the first one. `KATEX`: the paths of its files.
// `trust` is off: a formula cannot load a picture, link anywhere, or set attributes. One that KaTeX refuses stays as it was written.

const drawnFormulas = new Map(); // the HTML, by the formula: an answer that grows is drawn anew many times a second
let katex; // once it is loaded
let loading;
const loadKatex = async () => {
  const [script, style] = KATEX.map((path) => new URL(path, document.baseURI).href);
  document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: style }));
  katex = (await import(script)).default;
};
const htmlOf = (tex, displayMode) => {
  const name = `${displayMode} ${tex}`;
  if (!drawnFormulas.has(name)) {
    let html = null;
    try {
      html = katex.renderToString(tex, { displayMode, trust: false, strict: false, errorColor: "inherit", maxSize: 20, maxExpand: 500 });
    } catch { /* it is none */ }
    drawnFormulas.set(name, html);
  }
  return drawnFormulas.get(name);
};
const drawFormulas = (root) => {
  const waiting = [...root.querySelectorAll(".formula:not(.drawn)")];
  if (!waiting.length || !KATEX.length) return;
  if (!katex) {
    loading ??= loadKatex().then(() => drawFormulas(root)).catch(() => {});
    return;
  }
  for (const each of waiting) {
    const html = htmlOf(each.dataset.tex, "display" in each.dataset);
    each.classList.add("drawn");
    if (html !== null) each.innerHTML = html;
  }
};
