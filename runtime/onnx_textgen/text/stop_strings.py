"""Stop strings: passing text on while holding back whatever may turn out to be the beginning of one.

Knows nothing of tokens; `tokenizer` makes the text and `generation.continuation` ends the generation.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    r"""Cuts a stream of text before the first stop string, however the stream is split into chunks.

    The stop string that *begins* first wins. Where several begin at the same character the shortest wins: the text before
    it is the same, and it is complete first. All text passed on, by `push` and `flush` together, is the text up to that point.

    >>> matcher = StopMatcher(["\n\n"])
    >>> matcher.push("one\n"), matcher.push("two\n"), matcher.push("\nthree")
    (('one', None), ('\ntwo', None), ('', '\n\n'))
    """

    __slots__ = ("_held", "_longest", "_stops", "matched")

    matched: str | None
    """The stop string that was found; nothing is passed on after it."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Look for `stops`, none of them empty; there may be none at all."""
        self._stops = sorted(stops, key=len)
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self.matched = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Take the next chunk; returns the text that can be shown now, and the stop string found (at this chunk or before)."""
        return self._pass_on(text, ended=False), self.matched

    def flush(self) -> str:
        """Give the text still held back, once no more will come.

        A stop string held back only because an earlier, longer one might have begun before it is found here: see `matched`.
        """
        return self._pass_on("", ended=True)

    def _pass_on(self, text: str, *, ended: bool) -> str:
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = [(position, len(stop), stop) for stop in self._stops if (position := text.find(stop)) >= 0]
        match = min(found, default=None)
        open_at = len(text) if ended else self._first_open(text)
        if match is not None and match[0] <= open_at:
            self.matched, self._held = match[2], ""
            return text[: match[0]]
        self._held = text[open_at:]
        return text[:open_at]

    def _first_open(self, text: str) -> int:
        """Find the longest suffix that may begin a stop string; the length of the text if none does."""
        for position in range(max(0, len(text) - self._longest + 1), len(text)):
            suffix = text[position:]
            if any(stop.startswith(suffix) for stop in self._stops):
                return position
        return len(text)
