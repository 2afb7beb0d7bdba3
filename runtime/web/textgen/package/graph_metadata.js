/**
 * Reads the metadata of an ONNX file, which onnxruntime's JavaScript interface does not show.
 *
 * A `ModelProto` is a protocol buffer: a sequence of fields, each a tag and a value. Field 14 is `metadata_props`, a message of a
 * key (1) and a value (2); all others are skipped.
 */

const METADATA = 14;
const LENGTH_DELIMITED = 2;
/** Bytes of a value of fixed size, by wire type. @type {Record<number, number>} */
const FIXED = { 1: 8, 5: 4 };

/** The metadata of a graph. @param {Uint8Array} model @returns {Map<string, string>} */
export function graphMetadata(model) {
  const found = new Map();
  for (const [field, content] of fields(model)) {
    if (field === METADATA) {
      const entry = new Map(fields(content));
      const text = (/** @type {number} */ part) => new TextDecoder().decode(entry.get(part));
      found.set(text(1), text(2));
    }
  }
  return found;
}

/**
 * The fields with a length: number and content.
 * @param {Uint8Array} bytes
 * @returns {Generator<[number, Uint8Array], void, void>}
 */
function* fields(bytes) {
  let place = 0;
  const number = () => {
    let value = 0;
    for (let shift = 1; place < bytes.length; shift *= 128) {
      const byte = bytes[place++];
      value += (byte & 127) * shift;
      if (byte < 128) break;
    }
    return value;
  };
  while (place < bytes.length) {
    const tag = number();
    const kind = tag % 8;
    if (kind === LENGTH_DELIMITED) {
      const end = number() + place;
      yield [(tag - kind) / 8, bytes.subarray(place, end)];
      place = end;
    } else if (kind in FIXED) place += FIXED[kind];
    else number();
  }
}
