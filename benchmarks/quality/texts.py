"""The token ids that everyone is given: made once, by the checkpoint's tokenizer, and cut into windows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoTokenizer

Window = list[int]


def read_kinds(texts: Path, checkpoint: Path, *, window: int, tokens: int) -> dict[str, list[Window]]:
    """The windows of a text, or of each in a folder, by the name of its file without its ending."""
    files = sorted(texts.glob("*.*")) if texts.is_dir() else [texts]
    return {file.stem: read_windows(file, checkpoint, window=window, tokens=tokens) for file in files}


def read_windows(text: Path, checkpoint: Path, *, window: int, tokens: int | None = None) -> list[Window]:
    """The first tokens of a text (all of them by default) in windows of `window`; what fills no window is left out.

    No begin or end token is added: a window starts in the middle of a text. Of chats (`.json`, a list of lists of messages) each is
    a window, as the checkpoint's template writes it, cut after `window` tokens. Raises `ValueError` for a text that is too short.
    """
    windows = list(chats(text, checkpoint, window) if text.suffix == ".json" else cut(text, checkpoint, window))
    found = sum(map(len, windows))
    if found < max(window, tokens or 0):
        raise ValueError(f"{text} has {found:,} tokens, which is less than {max(window, tokens or 0):,}; give a longer text")
    return windows if tokens is None else list(first(windows, tokens))


def cut(text: Path, checkpoint: Path, window: int) -> Iterator[Window]:
    """A text's windows."""
    ids = (
        Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
        .encode(text.read_text(encoding="utf-8"), add_special_tokens=False)
        .ids
    )
    yield from (ids[start : start + window] for start in range(0, len(ids) - window + 1, window))


def chats(text: Path, checkpoint: Path, window: int) -> Iterator[Window]:
    """A window for each chat."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    for messages in json.loads(text.read_text(encoding="utf-8")):
        yield tokenizer.apply_chat_template(messages, return_dict=False)[:window]


def first(windows: list[Window], tokens: int) -> Iterator[Window]:
    """The first windows, `tokens` in all: the last one is cut."""
    for window in windows:
        if tokens <= 0:
            return
        yield window[:tokens]
        tokens -= len(window)
