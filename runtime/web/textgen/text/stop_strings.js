/**
 * Stop strings: passes text on, and holds back text that may be the beginning of a stop string.
 */

/**
 * Ends a stream of text before the first stop string, however the stream is split into chunks.
 *
 * The stop string that begins first counts; of those that begin at the same character, the shortest.
 */
export class StopMatcher {
  /** @param {readonly string[]} stops none of them empty */
  constructor(stops) {
    this.stops = [...stops].sort((one, other) => one.length - other.length);
    this.longest = Math.max(0, ...stops.map((each) => each.length));
    this.held = "";
    /** The stop string that was found; no text is passed on after it. @type {string | null} */
    this.matched = null;
  }

  /** Take the next chunk; returns the text that is certain now. @param {string} text */
  push(text) {
    return this.emit(text, false);
  }

  /** Return the text that is still held back, at the end; a stop string that was held back is found now. */
  flush() {
    return this.emit("", true);
  }

  /** @param {string} chunk @param {boolean} ended */
  emit(chunk, ended) {
    if (this.matched !== null) return "";
    if (!this.stops.length) return chunk;
    const text = this.held + chunk;
    let first = Infinity;
    let match = null;
    for (const stop of this.stops) {
      const place = text.indexOf(stop);
      if (place >= 0 && place < first) [first, match] = [place, stop];
    }
    const partial = ended ? text.length : this.partialMatchStart(text);
    if (match !== null && first <= partial) {
      [this.matched, this.held] = [match, ""];
      return text.slice(0, first);
    }
    this.held = text.slice(partial);
    return text.slice(0, partial);
  }

  /** Place of the longest suffix that a stop string begins with; the length of the text if there is none. @param {string} text */
  partialMatchStart(text) {
    for (let place = Math.max(0, text.length - this.longest + 1); place < text.length; place++) {
      const suffix = text.slice(place);
      if (this.stops.some((stop) => stop.startsWith(suffix))) return place;
    }
    return text.length;
  }
}
