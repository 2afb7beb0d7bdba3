/**
 * Imports a library from its bytes, which were compared with their sha256. This way it may lie on another host, and workers, which have
 * no import maps, can import it.
 * @param {Uint8Array<ArrayBuffer>} bytes of a module without imports
 * @returns {Promise<any>} its namespace
 */
export async function importModule(bytes) {
  const address = URL.createObjectURL(new Blob([bytes], { type: "text/javascript" }));
  return import(address); // the address stays valid: the threads of ONNX Runtime are started from it
}
