/**
 * The libraries that this one is built on. The caller imports them and hands them over, so that nothing here depends on where
 * they lie: in `node_modules`, on a server, or at an address that a worker of a browser knows (workers have no import maps).
 *
 * @typedef {object} Libraries
 * @property {typeof import("onnxruntime-common")} ort the namespace of onnxruntime-web or onnxruntime-node
 * @property {typeof import("@huggingface/tokenizers")} tokenizers
 * @property {typeof import("@huggingface/jinja")} jinja
 */

export {};
