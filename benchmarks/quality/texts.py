"""The token ids that everyone is given: made once, by the checkpoint's tokenizer, and cut into windows."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

Window = list[int]


def read_windows(text: Path, checkpoint: Path, *, window: int, tokens: int | None = None) -> list[Window]:
    """The first tokens of a text (all of them by default) in windows of `window`; what fills no window is left out.

    No begin or end token is added: a window starts in the middle of a text. Raises `ValueError` for a text that is too short.
    """
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    ids = tokenizer.encode(text.read_text(encoding="utf-8"), add_special_tokens=False).ids[:tokens]
    if len(ids) < max(window, tokens or 0):
        raise ValueError(f"{text} has {len(ids):,} tokens, which is less than {max(window, tokens or 0):,}; give a longer text")
    return [ids[start : start + window] for start in range(0, len(ids) - window + 1, window)]
