/**
 * The tab Proof: what the package's certificate says, and the golden runs replayed in this browser.
 */

import { count, get, make, size } from "./view.js";

/** @import { Opened, Replayed } from "./model_worker.js" */
/** @import { Site } from "./site_file.js" */

/** Entries of a certificate's records: the column's name, and how its number is written. @type {Record<string, [string, (value: number) => string]>} */
const NUMBERS = {
  tokens: ["positions", count],
  logits_error: ["logits error", scientific],
  top1_agreement: ["same top-1", (value) => `${(100 * value).toFixed(1)} %`],
  kl_divergence: ["KL", scientific],
  perplexity_change: ["perplexity", (value) => `${value < 0 ? "-" : "+"}${Math.abs(100 * value).toFixed(2)} %`],
};

/** @param {number} value */
function scientific(value) {
  return value.toExponential(1).replace(/e([+-])(\d)$/, "e$10$2");
}

export class ProofPane {
  /**
   * @param {HTMLElement} place
   * @param {() => void} onReplay
   */
  constructor(place, onReplay) {
    this.place = place;
    this.button = make("button", { type: "button", id: "replay", class: "primary", disabled: true }, "Replay here");
    this.button.addEventListener("click", onReplay);
    this.verdict = make("p", { id: "verdict", role: "status" });
    this.rows = make("tbody");
    /** Number of golden runs. */
    this.total = 0;
    place.append(make("p", { class: "hint" }, "The certificate appears when the model is open."));
  }

  /**
   * Show the certificate of an open model.
   * @param {Opened} opened
   * @param {Site} site
   */
  show({ manifest, checkedFiles }, site) {
    const { certificate = {}, golden = [] } = manifest;
    this.total = golden.length;
    this.rows.replaceChildren();
    this.verdict.replaceChildren();
    this.button.disabled = this.total === 0;
    this.place.replaceChildren(
      card(
        "Certificate",
        "When the package was made, its graph was compared with the PyTorch model on real text. These are the differences.",
        summary(certificate.summary ?? {}),
        make("p", { class: "hint" }, certificate.reference ? `Compared with ${certificate.reference}.` : "The package has no certificate."),
        ...(certificate.scenarios?.length ? [scenarios(certificate.scenarios)] : []),
      ),
      card(
        "In this browser",
        this.total
          ? `The package has ${this.total} continuations that were compared with PyTorch's. Here the model of this page computes them again, token by token.`
          : "The package has no recorded continuations to compare with.",
        make("div", { class: "actions" }, this.button),
        this.verdict,
        table(["prompt tokens", "tokens the same", "result", "text"], this.rows),
      ),
      card(
        "Files",
        `${checkedFiles} files of the model have the sha256 of its manifest; each was compared when it was read.`,
        table(
          ["file", "size", "sha256"],
          make("tbody", {}, ...Object.entries(site.files).map(([name, each]) => row(make("code", {}, name), size(each.size), make("code", {}, `${each.sha256.slice(0, 16)}…`)))),
        ),
        ...(manifest.source ? [make("p", { class: "hint" }, `Source: ${manifest.source}`)] : []),
        make("p", { class: "hint" }, `Made by ${site.made_by}. Libraries: ${libraries(site)}.`),
      ),
    );
  }

  /** A replay begins. */
  begin() {
    this.rows.replaceChildren();
    this.verdict.replaceChildren("replaying ...");
    this.button.disabled = true;
  }

  /** Add the result of one run. @param {Replayed} run */
  add(run) {
    const verdict = run.isRight ? make("span", { class: "right" }, run.same === run.tokens ? "equal" : "equal within rounding") : make("span", { class: "wrong" }, "different");
    const text = make("span", {}, make("span", { class: "hint" }, run.prompt), run.text);
    const line = row(count(run.promptTokens), `${run.same} of ${run.tokens}`, verdict, text);
    line.lastElementChild?.classList.add("text");
    this.rows.append(line);
  }

  /**
   * @param {Replayed[]} runs
   * @param {string} device
   */
  end(runs, device) {
    this.button.disabled = false;
    if (runs.length < this.total) {
      this.verdict.replaceChildren(`stopped after ${runs.length} of ${this.total} continuations, because something else was started`);
      return;
    }
    const right = runs.filter((run) => run.isRight).length;
    const same = runs.reduce((sum, run) => sum + run.same, 0);
    const tokens = runs.reduce((sum, run) => sum + run.tokens, 0);
    const verdict = make("span", { class: right === runs.length ? "right" : "wrong" }, `${right} of ${runs.length} continuations equal`);
    const rest = right === runs.length && same < tokens ? "; the others are within what the rounding of this package allows" : "";
    this.verdict.replaceChildren(verdict, ` (${same} of ${tokens} tokens the same${rest}), on ${device}.`);
  }

  /** @param {string} problem */
  fail(problem) {
    this.verdict.replaceChildren(make("span", { class: "wrong" }, problem));
    this.button.disabled = false;
  }
}

/** The tab's own element. */
export const proofPlace = () => get("proof", HTMLElement);

/**
 * @param {string} title
 * @param {string} note
 * @param {...Node} parts
 */
const card = (title, note, ...parts) => make("section", { class: "card", "aria-label": title }, make("h2", {}, title), make("p", {}, note), ...parts);

/** @param {Record<string, unknown>} found */
function summary(found) {
  const items = Object.entries(NUMBERS).flatMap(([key, [name, form]]) => {
    const value = found[key];
    return typeof value === "number" ? [make("div", {}, make("dt", {}, name), make("dd", {}, form(value)))] : [];
  });
  return make("dl", { class: "figure" }, ...items);
}

/** @param {Record<string, unknown>[]} records */
function scenarios(records) {
  const rows = records.map((record) => {
    const numbers = Object.entries(NUMBERS).map(([key, [, form]]) => (typeof record[key] === "number" ? form(/** @type {number} */ (record[key])) : ""));
    return row(String(record["name"] ?? ""), ...numbers);
  });
  return table(["scenario", ...Object.values(NUMBERS).map(([name]) => name)], make("tbody", {}, ...rows));
}

/**
 * A table that scrolls where it finds no room.
 * @param {string[]} names
 * @param {HTMLTableSectionElement} body
 */
function table(names, body) {
  const head = make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name))));
  return make("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": `Table: ${names.join(", ")}` }, make("table", { class: "facts" }, head, body));
}

/** @param {...(Node | string)} cells */
const row = (...cells) => make("tr", {}, ...cells.map((cell) => make("td", {}, cell)));

/** @param {Site} site */
const libraries = (site) => [...new Set(Object.values(site.libraries).map((each) => `${each.package} (${each.licence})`))].join(", ");
