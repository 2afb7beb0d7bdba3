"""Random texts under the grammar of tool calls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnx_textgen.sampling.grammar import Rules
from onnx_textgen.text.tokenizer import TextTokenizer


def random_text(
    rules: Rules, tokenizer: TextTokenizer, grammar: str, seed: int, *, ends: Sequence[str], most: int = 400, bias: float = 4
) -> tuple[str, bool]:
    """Draw a text under a grammar; returns it, and whether it is complete. `ends` are preferred, or texts would never end."""
    constraint, draw, ids = rules.compiled("tools", grammar), np.random.default_rng(seed), list[int]()
    likely = [tokenizer.encode(text, add_special_tokens=False)[-1] for text in ends]
    while len(ids) < most and not constraint.is_done:
        scores = draw.normal(size=rules.vocab_size).astype(np.float32)
        scores[likely] += bias
        scores[list(tokenizer.eos_ids)] += bias + 2
        constraint.mask(scores)
        chosen = int(scores.argmax())
        if chosen in tokenizer.eos_ids:
            return tokenizer.decode(ids), True
        ids.append(chosen)
        constraint.accept(chosen)
    return tokenizer.decode(ids), constraint.is_done
