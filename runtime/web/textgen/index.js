/** Generates text from an onnx-textgen package in a browser or in Node; nothing here imports a module of Node. */

export * from "./errors.js";
export { renderChat } from "./text/chat_template.js";
export { Decoder, openSession } from "./inference/decoder.js";
export { generate } from "./generation/generate.js";
export { replayGolden } from "./golden.js";
export { Model, openModel } from "./model.js";
export { Pictures } from "./images/pictures.js";
export { Package } from "./package/package.js";
export { TextTokenizer } from "./text/tokenizer.js";
