/**
 * What the penalties know of a text: its ids in order, each id once, the count of each id, and where a sequence breaks.
 */

/** The ids of a prompt and of the text after it. */
export class History {
  /** @param {readonly number[]} promptIds */
  constructor(promptIds) {
    /** Prompt and text, in order. @type {number[]} */
    this.ids = [...promptIds];
    /** Number of ids of the text. */
    this.newTokens = 0;
    /** Count of each id of the text. @type {Map<number, number>} */
    this.counts = new Map();
  }

  /** Each id of prompt and text once. */
  get unique() {
    return new Set(this.ids);
  }

  /** Append the ids that a text has more; it never loses any. @param {readonly number[]} tokenIds all ids of the text */
  sync(tokenIds) {
    for (const id of tokenIds.slice(this.newTokens)) {
      this.ids.push(id);
      this.counts.set(id, (this.counts.get(id) ?? 0) + 1);
    }
    this.newTokens = tokenIds.length;
  }

  /** The last `count` ids, or all for a negative `count`. @param {number} count */
  last(count) {
    return count < 0 ? this.ids : this.ids.slice(Math.max(0, this.ids.length - count));
  }
}

/** Which ids end a sequence for DRY: those whose text contains one of the given strings. */
export class SequenceBreakers {
  /** @param {readonly string[]} texts @param {((id: number) => string) | null} piece the text of an id; null: no id breaks */
  constructor(texts, piece) {
    this.texts = texts;
    this.piece = piece;
    /** @type {Map<number, boolean>} */
    this.known = new Map();
  }

  /** Whether an id ends a sequence. @param {number} id */
  breaks(id) {
    if (this.piece === null) return false;
    let found = this.known.get(id);
    if (found === undefined) {
      const text = this.piece(id);
      found = this.texts.some((each) => text.includes(each));
      this.known.set(id, found);
    }
    return found;
  }

  /** Number of ids after the last one that ends a sequence, at most `most`. @param {readonly number[]} ids */
  sinceLast(ids, most = 256) {
    let count = 0;
    while (count < Math.min(ids.length, most) && !this.breaks(ids[ids.length - 1 - count])) count++;
    return count;
  }
}
