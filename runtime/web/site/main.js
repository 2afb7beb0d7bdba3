/** The page of a site: finds out what the browser can do, opens the model, and connects the tabs with it. */

import { Chatting } from "./chatting.js";
import { DeviceChoice } from "./device_choice.js";
import { findCapabilities } from "./devices.js";
import { prepareForOffline } from "./offline.js";
import { askBeforeDownload, openModel, showProblem } from "./opening.js";
import { explain } from "./problems.js";
import { ProofPane, proofPlace } from "./proof_pane.js";
import { Run } from "./runs.js";
import { Settings } from "./settings.js";
import { readSite } from "./site_file.js";
import { Tabs } from "./tabs.js";
import { count, get, make, size } from "./view.js";
import { Writing } from "./writing.js";

/** @import { Choice } from "./device_choice.js" */
/** @import { Opened, Replayed } from "./model_worker.js" */

/** Bytes of a model whose golden runs are replayed without being asked. */
const SMALL_MODEL = 20e6;

await prepareForOffline();
try {
  await start();
} catch (error) {
  showProblem(explain(error));
}

async function start() {
  if (!globalThis.isSecureContext) throw new Error("browsers keep models only for pages of https or of localhost; open this page by such an address");
  const site = await readSite();
  document.title = `${site.name}: a language model in your browser`;
  get("name", HTMLElement).textContent = site.name;
  const capabilities = await findCapabilities();
  if (!capabilities.simd) throw new Error("this browser's WebAssembly has no SIMD instructions, which the model needs; use a browser of 2023 or later");

  const settings = new Settings();
  const run = new Run((isReady, isRunning) => {
    writing.setState(isReady, isRunning);
    chatting.setState(isReady, isRunning);
  });
  const writing = new Writing(settings, run);
  const chatting = new Chatting(settings, run, site);
  new Tabs(get("tabs", HTMLElement));
  writing.offer(site.prompts);
  let isFirst = true;
  /** @type {Choice} */
  let choice;
  const proof = new ProofPane(proofPlace(), () => replay());
  const devices = new DeviceChoice(capabilities, () => void open());
  await askBeforeDownload(site, devices.read(site.precision));
  await open();

  /** Open the model on the device that the settings choose. */
  async function open() {
    run.stop();
    run.worker?.close();
    run.setWorker(null);
    choice = devices.read(site.precision);
    try {
      const { worker, opened } = await openModel(site, choice);
      show(opened);
      run.setWorker(worker);
      if (isFirst && sizeOfModel() <= SMALL_MODEL && opened.manifest["golden"]?.length) void replay();
      isFirst = false;
    } catch (error) {
      if (choice.device === "webgpu" && devices.device.value === "auto") {
        devices.gpuFailed = true; // the model opens on WebAssembly, which has every operator
        await open();
      } else showProblem(explain(error));
    }
  }

  /** Show what is open. @param {Opened} opened */
  function show(opened) {
    const { manifest } = opened;
    const facts = [
      ["precision", site.precision],
      ["device", choice.name],
      ["size", size(sizeOfModel())],
      ["context", `${count(manifest["geometry"].context_length)} tokens`],
    ];
    const chips = facts.map(([name, value]) => make("li", {}, `${name} `, make("b", {}, value ?? "")));
    get("chips", HTMLElement).replaceChildren(...chips);
    if (isFirst) settings.setDefaults(manifest["generation"] ?? {}, manifest["geometry"].context_length);
    get("tab-chat", HTMLElement).hidden = get("system-field", HTMLElement).hidden = !opened.hasTemplate;
    chatting.contextLength = manifest["geometry"].context_length;
    proof.show(opened, site);
  }

  /** Bytes of the graphs and the weights of the device. */
  function sizeOfModel() {
    const graphs = [site.graphs[choice.device], ...(site.vision ? [site.vision] : [])];
    const names = graphs.flatMap(({ graph, data }) => [graph, ...Object.values(data)]);
    return names.reduce((sum, name) => sum + (site.files[name]?.size ?? 0), 0);
  }

  /** Replay the golden runs. */
  function replay() {
    /** @type {Replayed[]} */
    const runs = [];
    return run.start("replay", {
      givesWay: true,
      begin: () => proof.begin(),
      report: (reports) => {
        for (const each of reports) {
          runs.push(each);
          proof.add(each);
        }
      },
      end: () => proof.end(runs, choice.name),
      fail: (problem) => proof.fail(problem),
    });
  }
}
