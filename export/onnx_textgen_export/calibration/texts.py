"""The texts that weights are calibrated on, and the different ones that rounding is measured on; all were written for this.

Calibration reads encyclopaedia entries, news, stories, code, mathematics, letters, other languages, and chats in the model's own
template. Rounding is measured on prose, code, chats and paragraphs in other languages; no sentence is in both.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from onnx_textgen.errors import TemplateError
from onnx_textgen.text.chat_template import render_chat

from ..errors import ExportError
from ..proof.probe_text import PROBE_TEXT
from ..sources.source import Source
from ..tokenization.text_assets import TextAssets

TEXTS = Path(__file__).parent.parent / "texts"
CALIBRATION = (TEXTS / "calibration.txt", TEXTS / "calibration_text.txt")
WINDOW = 512
"""Tokens that are fed together, from an empty context."""
MOST_TOKENS, FEWEST_TOKENS = 8192, 1024
MOST_WORK = 1.2e12
"""Parameters times tokens of calibration: about two minutes of forward and backward pass on two cores."""
MEASURED_TOKENS = 1024
"""Tokens of each text that rounding is measured on."""


def affordable_tokens(source: Source, work: float, *, fewest: int, most: int) -> int:
    """The tokens that take this work, in parameters times tokens, within limits."""
    return int(min(max(work / sum(each.numel() for each in source.module.parameters()), fewest), most))


def most_tokens(source: Source, *, forward_only: bool = False) -> int:
    """The largest number of tokens to calibrate on: fewer for a large model, and if there is no backward pass."""
    return 4 * FEWEST_TOKENS if forward_only else affordable_tokens(source, MOST_WORK, fewest=FEWEST_TOKENS, most=MOST_TOKENS)


def windows(ids: Sequence[int], length: int) -> Tensor:
    """Whole windows [windows, length] of a text; an incomplete last window is left out, unless it is the only one."""
    count = len(ids) // length
    return torch.tensor(ids[: count * length]).reshape(count, length) if count else torch.tensor([list(ids)])


def encode(tokenizer: Tokenizer, text: str, vocab_size: int) -> list[int]:
    """Ids of a text, without those beyond the model's vocabulary."""
    return [token_id for token_id in tokenizer.encode(text).ids if token_id < vocab_size]


def calibration_ids(source: Source, assets: TextAssets, given: Path | None, *, forward_only: bool = False) -> Tensor:
    """Token ids [texts, tokens] to calibrate on: of the user's file, if given, else of the exporter's texts and chats.

    Fewer tokens are used for a large model, and with `forward_only`, which needs only the sizes of inputs.
    """
    if assets.tokenizer is None:
        raise ExportError("calibration on text needs a tokenizer")
    try:
        texts = [path.read_text(encoding="utf-8") for path in (CALIBRATION if given is None else [given])]
        texts += [chats(assets, "calibration")] if given is None else []
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError(f"cannot read {given} to calibrate on: {error}; give a text file in UTF-8") from error
    vocab_size, most = source.geometry.vocab_size, most_tokens(source, forward_only=forward_only)
    ids = [token_id for text in texts for token_id in encode(assets.tokenizer, text, vocab_size)]
    length = min(WINDOW, source.geometry.context_length)
    if len(ids) < min(64, length):
        raise ExportError(f"{given} has {len(ids)} tokens, too few to calibrate on; give a few thousand")
    found = windows(ids, length)
    if len(found) * length > most:  # spread over the text
        found = found[np.linspace(0, len(found) - 1, max(most // length, 1)).astype(int)]
    return found


def measured_texts(source: Source, assets: TextAssets) -> dict[str, list[int]]:
    """Token ids by the kind of text; ids drawn with a fixed seed if there is no tokenizer."""
    vocab_size, tokenizer = source.geometry.vocab_size, assets.tokenizer
    if tokenizer is None:
        drawn = np.random.default_rng(3).integers(0, vocab_size, MEASURED_TOKENS)
        return {"drawn": [int(i) for i in drawn if i != source.padding_id]}
    files = {kind: (TEXTS / f"{kind}.txt").read_text(encoding="utf-8") for kind in ("code", "languages")}
    texts = {"prose": PROBE_TEXT, **files, "chat": chats(assets, "measured")}
    return {kind: encode(tokenizer, text, vocab_size)[:MEASURED_TOKENS] for kind, text in texts.items()}


def chats(assets: TextAssets, kind: str) -> str:
    """Conversations in the model's template; as plain lines if it has none, or if the template raises an error."""
    talks: list[list[dict[str, Any]]] = json.loads((TEXTS / "chats.json").read_text(encoding="utf-8"))[kind]
    if assets.chat_template is not None:
        template, bos, eos = assets.chat_template, token(assets, assets.bos_id), token(assets, next(iter(assets.eos_ids), None))
        with contextlib.suppress(TemplateError):  # some templates reject a system message or need more arguments
            return "\n".join(
                render_chat(template, talk, bos_token=bos, eos_token=eos, add_generation_prompt=False) for talk in talks
            )
    return "\n\n".join(f"{message['role'].capitalize()}: {message['content']}" for talk in talks for message in talk)


def token(assets: TextAssets, token_id: int | None) -> str | None:
    """The text of a special token."""
    return assets.tokenizer.id_to_token(token_id) if assets.tokenizer is not None and token_id is not None else None
