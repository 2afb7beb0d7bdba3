"""Stop strings: passes text on, and holds back text that may be the beginning of a stop string.

`tokenizer` makes the text from tokens, and `generation.continuation` ends the generation.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    r"""Ends a stream of text before the first stop string, however the stream is split into chunks.

    The stop string that *begins* first counts. If several stop strings begin at the same character, the shortest counts: it is
    complete first, and the text before it is the same. `push` and `flush` together return exactly the text before that point.

    >>> matcher = StopMatcher(["\n\n"])
    >>> matcher.push("one\n"), matcher.push("two\n"), matcher.push("\nthree")
    (('one', None), ('\ntwo', None), ('', '\n\n'))
    """

    __slots__ = ("_held", "_longest", "_stops", "matched")

    matched: str | None
    """The stop string that was found, if any; no text is passed on after it."""

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops`: the stop strings, none of them empty; the sequence may be empty."""
        self._stops = sorted(stops, key=len)
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self.matched = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Take the next chunk; returns the text that is certain now, and the stop string if one was found, now or before."""
        return self._emit(text, ended=False), self.matched

    def flush(self) -> str:
        """Return the text that is still held back, at the end of the stream.

        If a stop string was held back because a longer one might have begun before it, it is found now: see `matched`.
        """
        return self._emit("", ended=True)

    def _emit(self, text: str, *, ended: bool) -> str:
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = [(position, len(stop), stop) for stop in self._stops if (position := text.find(stop)) >= 0]
        match = min(found, default=None)
        partial_start = len(text) if ended else self._partial_match_start(text)
        if match is not None and match[0] <= partial_start:
            self.matched, self._held = match[2], ""
            return text[: match[0]]
        self._held = text[partial_start:]
        return text[:partial_start]

    def _partial_match_start(self, text: str) -> int:
        """Position of the longest suffix that a stop string begins with; the length of the text if there is none."""
        for position in range(max(0, len(text) - self._longest + 1), len(text)):
            suffix = text[position:]
            if any(stop.startswith(suffix) for stop in self._stops):
                return position
        return len(text)
